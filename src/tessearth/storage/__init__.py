"""Files, sealed records, resumable jobs, worker pools and tables: engines that know no model."""

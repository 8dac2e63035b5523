"""The strategies of a Voronoi encoder: which ways of computing an embedding exist, and which one is taken when.

Every strategy computes the same function of the place. "plain" is the formula as it is written: all sites' weights,
their mixture, the tokens, the head. "fast" leaves out sites that provably weigh less than 1e-6 together
(`bounds.EPSILON`) and multiplies linear maps out beforehand (`head`); it differs from "plain" by rounding.

    device   strategy   a batch of places is computed                                     prepared in
    CPU      plain      by all sites, 8 million weights at a time                         nothing
    CPU      fast       up to 4 places: one by one, by their heaviest sites (`cpu`)       under a second
                        more: sorted into cells of the sphere (`bounds`); each batch      under a second, and
                        takes the cheapest of series, lists of sites and all sites        a second per new region
                        (`mixture`, `series`), in blocks of 512 places on all threads
                        levels of sharp sites: by the list of each place's own cell       seconds for the whole
                        (`listed`), which is made with its region (`regions`)             sphere and 65,536 sites
    GPU      plain      by all sites, 134 million weights at a time                       nothing
                        levels of sharp sites: by lists and a Triton kernel (`levels`)    tenths of a second
    GPU      fast       by series in every cell and Triton kernels up to the head         about ten seconds
                        (`gpu`, `triton_kernels`)

`Embedder(model, strategy=...)` names one; "auto" is "fast" on a CPU and "plain" on a GPU. On a GPU "fast" is for
millions of places a call (`Embedder.embed_tensor`): preparing it takes the time of 25 million places by "plain", and a
call of a few thousand places leaves most slots of its blocks empty. Tables and rasters come in such calls and are read,
packed and written by the host, so they take "auto".

`top_k`, float64 and explanations are always computed plainly, and so are models without a fast form: all but Voronoi
encoders, and on a GPU those with several tessellations or with sites too sharp for series. Where a tessellation has
chord logits and its sites are sharp, or few of them matter at a place (`listed.takes_lists`), `top_k` and explanations
look at its lists instead of all sites.

What is taken never depends on earlier calls: the same places in the same call give the same bits.
"""

from typing import Literal

Strategy = Literal["auto", "plain", "fast"]
"""The names that `Embedder` takes."""

from tessearth.training.finetuned import FineTuned as FineTuned
from tessearth.training.finetuned import load_finetuned as load_finetuned
from tessearth.training.finetuned import predict_table as predict_table
from tessearth.training.finetuning import finetune as finetune
from tessearth.training.loop import pretrain as pretrain
from tessearth.training.prediction_map import predict_map as predict_map
from tessearth.training.recipe import read_recipe as read_recipe

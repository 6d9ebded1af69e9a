"""The sections, the most valuable first: what a short budget leaves out stands at the end."""

from tests.gpu.correct_encoding import encode
from tests.gpu.correct_extras import extras
from tests.gpu.correct_finetuning import finetune
from tests.gpu.correct_pretraining import pretrain
from tests.gpu.correct_processes import processes
from tests.gpu.correct_reranking import rerank_and_generate
from tests.gpu.correct_resuming import resume
from tests.gpu.correct_search import exact_search
from tests.gpu.environment import environment
from tests.gpu.gpu_tests import gpu_tests
from tests.gpu.heads import heads
from tests.gpu.real_training import real_training
from tests.gpu.sections import Section
from tests.gpu.speed_encoding import encode_command, encode_speed
from tests.gpu.speed_search import search_speed
from tests.gpu.speed_training import train_speed

SECTIONS = (
    Section("environment", environment, 40),
    Section("encode", encode, 40),
    Section("exact-search", exact_search, 30),
    Section("finetune", finetune, 60),
    Section("pretrain", pretrain, 60),
    Section("encode-speed", encode_speed, 60),
    Section("train-speed", train_speed, 150),
    Section("search-speed", search_speed, 90),
    Section("encode-command", encode_command, 240),
    Section("real-training", real_training, 130),
    Section("resume", resume, 30),
    Section("rerank-generate", rerank_and_generate, 40),
    Section("gpu-tests", gpu_tests, 120),
    Section("extras", extras, 80),
    Section("processes", processes, 150),
    Section("heads", heads, 330),
)

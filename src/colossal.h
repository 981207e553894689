// The library for those who build upon it: everything that is installed, in one include.
//
// A module of one's own, trained over ranks as it is (train/module_training.h, examples/own_module):
//
//   auto training = colossal::initialize(world, *module, config);
//   training->backward(loss_of(module->forward(training->input(x)), y));
//   training->step();
//   int main(int argc, char** argv) { return colossal::run_module(argc, argv, train); }      // cli/run_module.h
//
// A module of one's own whose operators are divided over ranks, too, by a plan that the library finds
// (auto_parallel/training.h, examples/own_module_auto):
//
//   auto training = colossal::auto_parallel::initialize(world, *module, loss, {x, y}, config);
//   training->backward({rows_of_x, rows_of_y});
//   training->step();
//
// A model of one's own over the layers of the library, which is cut over ranks as ours are (models/registry.h,
// cli/main.h, examples/own_model):
//
//   auto models = colossal::models::built_in();
//   models.add({.name = "own", .presets = ..., .make = make_own});
//   return colossal::main(argc, argv, models);
//
// An objective of one's own, with its samples, loss and metrics (run/objective.h, run/program.h,
// examples/own_objective):
//
//   auto program = colossal::built_in();
//   program.objectives.add({.name = "own", .tables = {{"own", OwnObjectiveKeys{}}}, .make = make_own_objective});
//   return colossal::main(argc, argv, program);
//
// Adapters of one's own: what trains, what checkpoints hold, what wraps linear layers (nn/adapter.h, run/adapters.h,
// examples/own_adapter):
//
//   program.adapters.add({.table = "low_rank", .keys = AdapterKeys{}, .make = make_adapter});
//
// Verifiers of one's own, which judge what a model has written (text/verifiers/verifier.h):
//
//   program.verifiers.add({.name = "polite", .make = [] { return std::make_unique<Polite>(); }});
//
// Ranks and what they say to one another (comm/launch/launch.h, comm/mesh.h, comm/group.h). A main() that uses neither
// colossal::main() nor run_module() counts memory from its first line on (memory/account.h):
//
//   colossal::memory::track_host_memory();
//   auto world = colossal::comm::launch({.backend = "auto"});
//   colossal::comm::Mesh mesh(*world, {colossal::comm::Mesh::batch("data", 2), {"tensor", 2}});
//   mesh.group("tensor").all_reduce(gradient, colossal::comm::Reduce::Sum).wait();
//
// Tokens and chats of a model, and how the next token is drawn (text/tokenizer.h, text/chat_template.h,
// infer/request.h):
//
//   const auto tokenizer = colossal::text::make_tokenizer("models/gpt2");
//   colossal::infer::Sampler sampler({.temperature = 0.8, .top_p = 0.95});
//
// Proteins, folded by a model that a run trained or that was downloaded (fold/fold.h):
//
//   const auto folded = colossal::fold::fold(*world, "esmfold_v1", {{"one", {"MKTAYIAKQRQISFVK"}}});
//   colossal::fold::write(folded[0], "one.cif");
//
// Which headers these are, colossal/PUBLIC says; the others may change with every version.
#pragma once
#include "colossal/auto_parallel/training.h"
#include "colossal/base/config.h"
#include "colossal/base/cuda_build.h"
#include "colossal/base/error.h"
#include "colossal/base/metric.h"
#include "colossal/base/version.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/manifest.h"
#include "colossal/checkpoint/newest.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/cli/main.h"
#include "colossal/cli/run_module.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/collectives.h"
#include "colossal/comm/launch/device.h"
#include "colossal/comm/launch/environment.h"
#include "colossal/comm/launch/launch.h"
#include "colossal/comm/launch/local_ranks.h"
#include "colossal/comm/launch/process_settings.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/fold/fold.h"
#include "colossal/infer/generation_defaults.h"
#include "colossal/infer/request.h"
#include "colossal/memory/account.h"
#include "colossal/memory/host_memory.h"
#include "colossal/models/decoder.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/axial_ranks.h"
#include "colossal/nn/axis_switch.h"
#include "colossal/nn/direct_product.h"
#include "colossal/nn/dropout.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/experts.h"
#include "colossal/nn/features.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/latent_heads.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/low_rank.h"
#include "colossal/nn/modulation.h"
#include "colossal/nn/neighbours.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/nn/patches.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/nn/sinusoids.h"
#include "colossal/nn/token_memory.h"
#include "colossal/nn/token_runs.h"
#include "colossal/nn/vector.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/cpu.h"
#include "colossal/ops/rotary.h"
#include "colossal/run/config.h"
#include "colossal/tensor/flops.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/end_tokens.h"
#include "colossal/train/engine.h"
#include "colossal/train/module_training.h"
#include "colossal/train/trainer.h"

// The folder of a run whose model draws clips of pixels, as it is before the first step: a tiny STDiT3 with captions as
// bytes. All weights are drawn anew, because temporal branches begin as 0.
//
//   test::write_clip_run(folder / "run", {"--model.frames=5"});
#pragma once
#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/base/file.h"
#include "colossal/base/run_folder.h"
#include "colossal/base/seed.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/run/data.h"
#include "colossal/run/program.h"
#include "colossal/train/checkpoints.h"
#include "colossal/train/engine.h"
#include "colossal/train/run_models.h"

namespace colossal::test {

/// Replaces all weights of a model that one rank has whole.
inline void set_random_weights(nn::Parameters& parameters) {
  for (const nn::Parameter& p : parameters) {
    const auto generator = at::detail::createCPUGenerator(derive_seed(7, p.name));
    p.value.detach().copy_(at::randn(p.spec.shape, generator, at::TensorOptions(at::kDouble)) * 0.2);
  }
}

/// Returns the config of the run.
inline run::Config clip_run_config(const std::string& path, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> all{"--model.name=stdit3-tiny",   "--model.hidden=16",    "--model.ffn=32",
                               "--model.layers=2",           "--model.frames=3",     "--model.height=8",
                               "--model.width=12",           "--model.base_side=8",  "--vae.from=none",
                               "--precision.mode=fp64",      "--run.folder=" + path, "--run.device=cpu",
                               "--data.path=builtin-shapes", "--training.ema=0"};
  all.insert(all.end(), flags.begin(), flags.end());
  return run::read_given_config("", all).config;
}

/// Writes the folder of the run.
inline void write_clip_run(const std::string& path, const std::vector<std::string>& flags = {}) {
  const run::Config config = clip_run_config(path, flags);
  comm::run_ranks(1, [&](comm::World& world) {
    const auto engine =
        train::initialize(world, config, train::models_of(config, run::resolve_model(config, run::built_in())));
    set_random_weights(engine->parameters());
    const RunFolder folder(path);
    folder.create();
    write_file(folder.config(), to_toml(config));
    train::Checkpoints(folder.checkpoints(), engine->mesh(), 0).save(*engine);
  });
}

}  // namespace colossal::test

// Runs that learn to draw in latents: a tiny UNet, a tiny autoencoder that a run trained, and captions, in fp64.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "colossal/data/pictures/picture.h"
#include "diffusion/diffusion_runs.h"

namespace colossal::diffusion {

class LatentRuns : public DiffusionRuns {
 protected:
  /// Trains the autoencoder of all tests: pictures of 16 pixels become 8 x 8 cells.
  static void SetUpTestSuite() {
    shared_ = std::make_unique<test::TemporaryFolder>();
    train(run::read_given_config(
              test::source_dir() + "/examples/vae_shapes.toml",
              {"--run.folder=" + vae(), "--run.device=cpu", "--run.matmul=mkl", "--precision.mode=fp64",
               "--model.height=16", "--model.width=16", "--model.levels=4,8", "--model.groups=2",
               "--data.path=builtin-shapes:20", "--data.held_out=0.1", "--optimizer.warmup_steps=0",
               "--training.batch_size=4", "--training.steps=2", "--training.evaluate_every=0"})
              .config);
  }
  static void TearDownTestSuite() { shared_.reset(); }
  /// The folder of what the tests of a suite share.
  static const test::TemporaryFolder& shared() { return *shared_; }
  static std::string vae() { return shared() / "vae"; }

  /// A short run in a folder, on drawn shapes. All such runs share their latents.
  static run::Config latent_config_in(const std::string& folder, const std::vector<std::string>& flags = {}) {
    const std::vector<std::string> own{"--run.folder=" + folder,
                                       "--run.device=cpu",
                                       "--run.matmul=mkl",
                                       "--precision.mode=fp64",
                                       "--parallel.chunk_mib=0.05",
                                       "--model.features=[8,16]",
                                       "--model.resnets=1",
                                       "--model.transformers=[1,0]",
                                       "--model.attention_heads=[2,2]",
                                       "--model.groups=4",
                                       "--vae.from=" + vae(),
                                       "--data.path=builtin-shapes:24",
                                       "--data.held_out=0.2",
                                       "--data.latents=" + (shared() / "latents"),
                                       "--optimizer.warmup_steps=0",
                                       "--training.batch_size=4",
                                       "--training.steps=3",
                                       "--training.ema=0",
                                       "--training.sample_every=0",
                                       "--training.evaluate_batches=1",
                                       "--training.evaluate_every=3"};
    return run::read_given_config(test::source_dir() + "/examples/sd_finetune.toml", test::joined(own, flags)).config;
  }
  /// One in the folder `name` of the test.
  run::Config latent_config(const std::string& name, const std::vector<std::string>& flags = {}) const {
    return latent_config_in(folder_ / name, flags);
  }
  /// Writes `count` pictures with captions into a folder of the test.
  void write_pictures(const std::string& folder, int64_t count, int64_t width, int64_t height,
                      uint8_t first = 0) const {
    for (int64_t i = 0; i < count; ++i) {
      data::Picture picture{width, height, {}};
      for (int64_t k = 0; k < width * height * 3; ++k)
        picture.rgb.push_back(static_cast<uint8_t>(first + 40 * i + 7 * (k % (3 * width))));
      const std::string name = concat(folder, "/", width, "x", height, "-", i);
      folder_.write(name + ".png", data::encode_png(picture));
      folder_.write(name + ".txt", concat("picture ", i % 3));
    }
  }

 private:
  inline static std::unique_ptr<test::TemporaryFolder> shared_;
};

}  // namespace colossal::diffusion

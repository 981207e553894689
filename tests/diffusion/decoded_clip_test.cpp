// Frames that cannot be written end all ranks, and decoded frames come in order.
#include "colossal/diffusion/decoded_clip.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/diffusion/drawer.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "support/clip_run.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::diffusion::decoded_clip_test {
namespace {

using testing::HasSubstr;

class DecodedClips : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(DecodedClips, EndOnAllRanksIfAFrameCannotBeWritten) {
  const test::TemporaryFolder folder;
  const run::Config config = test::clip_run_config(folder / "run", GetParam());
  const run::ResolvedModel model = run::resolve_model(config, run::built_in());
  const run::PipelineSource source =
      dynamic_cast<const run::DiffusionObjective&>(*model.objective.objective).pipeline();
  comm::run_ranks(2, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    const PipelineParts parts(source, world, at::kCPU, {}, run::built_in());
    const int64_t frames = clip_length(source, 0).frames;
    const ClipToDecode clip{.clip = at::zeros({1, source.sizes.channels, source.sizes.frames, 4, 6}), .frames = frames};
    int64_t taken = 0;
    decode_clip(parts, mesh, clip, [&](const data::Picture&) { ++taken; });
    EXPECT_EQ(taken, world.rank() == 0 ? frames : 0);
    for (const int64_t last : {int64_t{0}, frames - 1}) {
      taken = 0;
      const auto fails = [&](const data::Picture&) { require(taken++ < last, "file", "no space left: frame ", last); };
      try {
        decode_clip(parts, mesh, clip, fails);
        FAIL() << "rank " << world.rank() << " goes on";
      } catch (const DecodingFailed&) {
        FAIL() << "the latents can be decoded";
      } catch (const Error& error) {
        EXPECT_THAT(error.message(), HasSubstr(concat("no space left: frame ", last)));
        EXPECT_TRUE(error.is_on_all_ranks());
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Autoencoders, DecodedClips,
                         testing::Values(std::vector<std::string>{},  // pixels
                                         std::vector<std::string>{"--model.channels=4", "--model.height=4",
                                                                  "--model.width=6", "--vae.from=autoencoder-kl-tiny"},
                                         std::vector<std::string>{"--model.channels=4", "--model.height=4",
                                                                  "--model.width=6", "--vae.from=open-sora-vae-tiny"}));

}  // namespace
}  // namespace colossal::diffusion::decoded_clip_test

// Drawing with captions and latents: a trained run, its parts, pictures and masks of a user, and the latent cache.
#include "colossal/diffusion/drawer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <array>
#include <mutex>
#include <numeric>

#include "colossal/base/file.h"
#include "colossal/comm/mesh.h"
#include "colossal/diffusion/given_picture.h"
#include "colossal/diffusion/latent_filling.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/models/autoencoder_kl_rows.h"
#include "colossal/run/model_source.h"
#include "colossal/run/objectives/diffusion/drawn_pictures.h"
#include "colossal/run/objectives/diffusion/guidance_ranks.h"
#include "colossal/run/saved_model.h"
#include "diffusion/latent_runs.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "text/clip_files.h"

namespace colossal::diffusion::drawer_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A loaded pipeline on one rank.
struct Loaded {
  comm::Mesh& mesh;
  const run::PipelineSource& source;
  distributed::DistributedModel& model;
  PipelineParts& parts;
  Drawer& drawer;
};

class Drawers : public LatentRuns {
 protected:
  static void SetUpTestSuite() {
    LatentRuns::SetUpTestSuite();
    // A high rate, so that captions matter after few steps.
    train(latent_config_in(trained(),
                           {"--training.steps=6", "--training.evaluate_batches=0", "--optimizer.learning_rate=0.05",
                            "--optimizer.final_learning_rate=0.05", "--diffusion.guidance=3"}));
  }
  static std::string trained() { return shared() / "trained"; }

  /// Loads the trained pipeline on `replicas` times `guidance` ranks and calls `use` on each.
  static void load(int replicas, const std::function<void(const Loaded&, int rank)>& use, int guidance = 1) {
    load(distributed::ParallelConfig{.data = replicas}, use, guidance);
  }
  static void load(const distributed::ParallelConfig& layout, const std::function<void(const Loaded&, int rank)>& use,
                   int guidance = 1) {
    const run::Program known = program();
    const run::PipelineSource source = find_pipeline(trained(), known, "draw");
    comm::run_ranks(static_cast<int>(layout.ranks()) * guidance, [&](comm::World& world) {
      comm::Mesh mesh(world, run::axes_with_guidance(layout, guidance)), own = mesh.without({run::kGuidanceAxis});
      const run::SavedModel saved = run::load_model(trained(), own, layout, at::kCPU, {.tokenizer = "none"}, known);
      PipelineParts parts(source, world, at::kCPU, {}, known);
      Drawer drawer(source, *saved.model, parts, mesh, "abc");
      use({mesh, source, *saved.model, parts, drawer}, world.rank());
    });
  }
  /// Returns the files that each of the options draws, one after another.
  static std::vector<std::string> drawn(const std::vector<DrawOptions>& all, int replicas = 1, int guidance = 1) {
    std::vector<std::string> files;
    const auto draw_all = [&](const Loaded& loaded, int) {
      for (const DrawOptions& options : all)
        loaded.drawer.draw(options, {}, [&](const DrawnPicture& one) { files.push_back(one.png); });
    };
    load(replicas, draw_all, guidance);
    return files;
  }
  static data::Picture picture(const std::string& png) { return data::decode_picture(png, "drawn"); }
};

TEST_F(Drawers, RepeatEachPictureAloneAndOnEveryRank) {
  const DrawOptions all{.prompt = "a star", .count = 3, .seed = 5, .steps = 3};
  DrawOptions one = all;
  one.seed = 6;
  one.count = 1;
  const std::vector<std::string> files = drawn({all, one});
  ASSERT_EQ(files.size(), 4u);
  EXPECT_TRUE(files[1] == files[3]) << "picture 1 of seed 5";
  EXPECT_FALSE(picture(files[0]).rgb == picture(files[1]).rgb);
  EXPECT_TRUE(drawn({all, one}, 2) == files);
}

// Ranks without a picture of their own take part in decoding that of others: replicas, and the ranks of one replica.
TEST_F(Drawers, ShareTheRowsOfAPictureAmongRanks) {
  const DrawOptions options{.prompt = "a star", .seed = 5, .steps = 2};
  const std::vector<uint8_t> alone = picture(drawn({options}).at(0)).rgb;
  const models::ModelShape shape = run::find_source(find_pipeline(trained(), program(), "draw").vae, program()).shape;
  for (const distributed::ParallelConfig& layout :
       {distributed::ParallelConfig{.data = 3}, distributed::ParallelConfig{.tensor = {.size = 2}}}) {
    std::vector<double> sent(static_cast<size_t>(layout.ranks()));
    load(layout, [&](const Loaded& loaded, int rank) {
      loaded.drawer.draw(options, {}, [&](const DrawnPicture& one) { EXPECT_EQ(picture(one.png).rgb, alone); });
      sent[static_cast<size_t>(rank)] = loaded.mesh.world().traffic().total("", "all_to_all").elements;
    });
    const models::RowTraffic formula =
        models::decoding_traffic(shape.own.as<models::AutoencoderKlSizes>(), {8, 8}, layout.ranks());
    EXPECT_EQ(std::accumulate(sent.begin(), sent.end(), 0.0),
              static_cast<double>(formula.total() - formula.norms));  // whose sums are no exchanges
  }
}

TEST_F(Drawers, KeepTheLatentsIfARankFailsToDecodeItsRows) {
  load(2, [](const Loaded& loaded, int rank) {
    run::PipelineSource source = loaded.source;
    if (rank == 1) source.vae = "autoencoder-kl-tiny";  // exchanges other rows
    PipelineParts parts(source, loaded.mesh.world(), at::kCPU, {}, program());
    Drawer drawer(loaded.source, loaded.model, parts, loaded.mesh, "");
    try {
      drawer.draw({.prompt = "a star", .seed = 5, .steps = 1}, {}, [](const DrawnPicture&) {});
      ADD_FAILURE() << "decoded";
    } catch (const DecodingFailed& failure) {
      EXPECT_EQ(failure.latents.sizes(), at::IntArrayRef({1, 4, 8, 8}));
      EXPECT_EQ(failure.seed, 5);
    }
  });
}

TEST_F(Drawers, RepeatPicturesWithThePassesOfGuidanceOnRanksOfTheirOwn) {
  const std::vector<DrawOptions> all{{.prompt = "a star", .negative = "a heart", .count = 3, .seed = 5, .steps = 3}};
  EXPECT_TRUE(drawn(all, 2, 2) == drawn(all));
}

// Each step sends the predictions of both ranks once, and nothing else.
TEST_F(Drawers, ShareGuidanceWithOneGatherAStep) {
  constexpr int64_t kSteps = 3;
  std::array<at::Tensor, 2> latents;  // drawn by one rank, and by two
  double sent = 0;
  std::mutex mutex;
  for (const int guidance : {1, 2}) {
    const auto draw_latents = [&](const Loaded& loaded, int rank) {
      const tensor::Batch told = loaded.parts.told("a star", 0), untold = loaded.parts.told("", 0);
      const double before = loaded.mesh.world().traffic().total().elements;
      const at::Tensor own = draw(loaded.model, run::plan_of(loaded.source, {.steps = kSteps}),
                                  {.told = tensor::joined_rows({told, told}),
                                   .untold = tensor::joined_rows({untold, untold}),
                                   .seeds = {1, 2},
                                   .guidance = 3,
                                   .rescale = 0.5,
                                   .halves = &loaded.mesh.group(run::kGuidanceAxis)});
      const std::lock_guard lock(mutex);
      sent += loaded.mesh.world().traffic().total().elements - before;
      if (rank + 1 == guidance) latents.at(rank) = own;
    };
    load(1, draw_latents, guidance);
  }
  EXPECT_TRUE(at::allclose(latents[1], latents[0], 1e-12, 1e-12));
  EXPECT_EQ(sent, kSteps * run::elements_of_halves(2, 4 * 8 * 8));
}

TEST_F(Drawers, RepeatPicturesInAPipeline) {
  const DrawOptions options{.prompt = "a star", .seed = 5, .steps = 2};
  const std::string one = drawn({options}).at(0);
  const run::Program known = program();
  const run::PipelineSource source = find_pipeline(trained(), known, "draw");
  comm::run_ranks(2, [&](comm::World& world) {
    distributed::ParallelConfig layout;
    layout.pipeline.size = 2;
    comm::Mesh mesh(world, layout.axes());
    const run::SavedModel saved = run::load_model(trained(), mesh, layout, at::kCPU, {.tokenizer = "none"}, known);
    PipelineParts parts(source, world, at::kCPU, {}, known);
    Drawer(source, *saved.model, parts, mesh, "abc").draw(options, {}, [&](const DrawnPicture& two) {
      EXPECT_TRUE(two.png == one);
    });
  });
}

TEST_F(Drawers, FollowEachOptionAndNameIt) {
  const DrawOptions plain{.prompt = "a star", .seed = 6, .steps = 3, .guidance = 20};
  std::vector<DrawOptions> others(6, plain);
  others[0].prompt = "a heart";
  others[1].negative = "a heart";
  others[2].clip_skip = 1;
  others[3].guidance = 1;
  others[4].rescale = 1;
  others[5].sampler = "euler";
  std::vector<DrawOptions> all{plain};
  all.insert(all.end(), others.begin(), others.end());
  const std::vector<std::string> files = drawn(all);
  for (size_t i = 1; i < files.size(); ++i)
    EXPECT_FALSE(picture(files[i]).rgb == picture(files[0]).rgb) << "option " << i;
  const auto text = [&](size_t i) { return data::read_png_texts(files.at(i), "drawn").at(0).text; };
  EXPECT_EQ(text(0), "a star\nSteps: 3, Sampler: ddim, CFG scale: 20, Seed: 6, Size: 16x16, Model hash: abc");
  EXPECT_THAT(text(2), testing::StartsWith("a star\nNegative prompt: a heart\nSteps: 3"));
  EXPECT_THAT(text(3), HasSubstr("Size: 16x16, Clip skip: 2, Model hash"));
}

TEST_F(Drawers, DrawOtherSizesOfTheGrid) {
  const data::Picture wide = picture(drawn({{.prompt = "a star", .size = "24x16", .steps = 2}}).at(0));
  EXPECT_EQ(wide.width, 24);
  EXPECT_EQ(wide.height, 16);
  EXPECT_THAT(test::thrown_message([] { drawn({{.prompt = "a star", .size = "25x16", .steps = 2}}); }),
              HasSubstr("the nearest is 26x16"));
}

TEST_F(Drawers, SayThatTilesAreApproximate) {
  load(1, [](const Loaded& loaded, int) {
    const auto one_of = [&](const DrawOptions& options) {
      DrawnPicture drawn;
      loaded.drawer.draw(options, {}, [&](const DrawnPicture& one) { drawn = one; });
      return drawn;
    };
    DrawOptions wide{.prompt = "a star", .size = "40x16", .steps = 2}, tiled = wide;
    tiled.tiles = true;
    const DrawnPicture exact = one_of(wide), approximate = one_of(tiled);
    EXPECT_EQ(exact.note, "");
    EXPECT_THAT(approximate.note, HasSubstr("tiles of 16 pixels, which is approximate"));
    EXPECT_FALSE(picture(approximate.png).rgb == picture(exact.png).rgb);
    tiled.size = wide.size = "16x16";
    EXPECT_EQ(one_of(tiled).note, "") << "one tile";
  });
}

TEST_F(Drawers, BeginFromAPictureByTheStrength) {
  write_pictures("given", 1, 16, 16, 60);
  const std::string image = folder_ / "given/16x16-0.png";
  const GivenPicture given = read_given_picture(image, "", {}, 2);
  const auto distance = [&](double strength) {
    const DrawOptions options{.prompt = "a star", .steps = 10, .image = image, .strength = strength};
    double found = 0;
    load(1, [&](const Loaded& loaded, int) {
      const data::Picture kept = picture_of(loaded.parts.pixels(loaded.parts.drawn(given.pixels))[0]);
      loaded.drawer.draw(options, {}, [&](const DrawnPicture& one) {
        const data::Picture result = picture(one.png);
        for (size_t i = 0; i < kept.rgb.size(); ++i) found += std::abs(int{kept.rgb[i]} - int{result.rgb[i]});
        EXPECT_THAT(data::read_png_texts(one.png, "drawn").at(0).text, HasSubstr("Denoising strength: "));
      });
    });
    return found / static_cast<double>(given.pixels.numel());
  };
  EXPECT_LT(distance(0.1), 0.5 * distance(1));
}

// The first sample is the picture at the level of the first step, so noise alone that is equal draws the same.
TEST_F(Drawers, NoiseAPictureAsTheFirstStepSays) {
  load(1, [](const Loaded& loaded, int) {
    const tensor::Batch told = loaded.parts.told("a star", 0);
    const at::Tensor pictures = at::randn({1, 4, 8, 8}, at::kDouble), noise = at::randn({1, 4, 8, 8}, at::kDouble);
    for (const char* sampler : {"ddim", "euler", "dpm++2m"})
      for (const double strength : {1.0, 0.5}) {
        const noise::SamplerPlan plan =
            run::plan_of(loaded.source, {.sampler = sampler, .steps = 4, .strength = strength});
        const noise::Mix level = plan.steps.front().level;
        const at::Tensor from_picture =
            draw(loaded.model, plan, {.told = told, .seeds = {1}, .start = noise, .pictures = pictures});
        const at::Tensor from_noise = draw(
            loaded.model, plan,
            {.told = told, .seeds = {1}, .start = (level.signal * pictures + level.noise * noise) / plan.start_scale});
        EXPECT_TRUE(at::allclose(from_picture, from_noise, 1e-9, 1e-9)) << sampler << ", " << strength;
      }
  });
}

TEST_F(Drawers, KeepWhatTheMaskCoversWithEverySampler) {
  load(1, [](const Loaded& loaded, int) {
    const tensor::Batch told = loaded.parts.told("a star", 0);
    const at::Tensor pictures = at::randn({1, 4, 8, 8}, at::kDouble);
    at::Tensor mask = at::zeros({1, 1, 8, 8}, at::kDouble);
    mask.narrow(3, 0, 4).fill_(1);
    for (const std::string& sampler : noise::sampler_names()) {
      if (sampler == "flow") continue;
      const noise::SamplerPlan plan = run::plan_of(loaded.source, {.sampler = sampler, .steps = 4, .strength = 0.8});
      const at::Tensor all = draw(loaded.model, plan, {.told = told, .seeds = {1}, .pictures = pictures, .mask = mask});
      EXPECT_TRUE(at::equal(all.narrow(3, 4, 4), pictures.narrow(3, 4, 4))) << sampler;
      const at::Tensor painted = all.narrow(3, 0, 4);
      EXPECT_TRUE(painted.isfinite().all().item<bool>()) << sampler;
      EXPECT_FALSE(at::allclose(painted, pictures.narrow(3, 0, 4), 1e-2, 1e-2)) << sampler;
    }
    EXPECT_THAT(test::thrown_message([&] {
                  draw(loaded.model, run::plan_of(loaded.source, {.steps = 2}),
                       {.told = told, .seeds = {1}, .mask = mask});
                }),
                HasSubstr("must come with the pictures"));
  });
}

TEST_F(Drawers, RefuseWhatThePipelineCannotDo) {
  const auto refused = [](const DrawOptions& options) {
    return test::thrown_message([&] { Drawer::check(find_pipeline(trained(), program(), "draw"), options, {}); });
  };
  EXPECT_THAT(refused({.drawn = "star"}), HasSubstr("describe it with --prompt"));
  EXPECT_THAT(refused({.prompt = "x", .sampler = "eular"}), HasSubstr("did you mean `euler`?"));
  EXPECT_THAT(refused({.prompt = "x", .sampler = "flow"}), HasSubstr("flow"));
  EXPECT_THAT(refused({.prompt = "x", .negative = "y", .guidance = 1}), HasSubstr("got guidance 1"));
  EXPECT_THAT(refused({.prompt = "x", .size = "1x16"}), HasSubstr("the nearest is 2x16"));
  load(1, [](const Loaded& loaded, int) {
    EXPECT_THAT(test::thrown_message([&] { loaded.parts.told("x", 2); }), HasSubstr("clip"));
    run::PipelineSource other = loaded.source;
    const auto refused_parts = [&] {
      return test::thrown_message([&] {
        comm::run_ranks(1, [&](comm::World& world) { PipelineParts(other, world, at::kCPU, {}, program()); });
      });
    };
    other.sizes.text = 32;
    EXPECT_THAT(refused_parts(),
                HasSubstr("states of 32 features and 0 pooled ones, which the model reads: got 64 and 0"));
    other = loaded.source;
    other.sizes.channels = 8;
    EXPECT_THAT(refused_parts(), HasSubstr("must have latents of 8 channels, which the model draws: got 4"));
    other = loaded.source;
    const test::TemporaryFolder tokenizer;
    text::clip::write_folder(tokenizer);
    other.captions[0].tokenizer = tokenizer.path();
    EXPECT_THAT(refused_parts(), HasSubstr("must have at most the 259 tokens (vocab_size) of the text encoder"));
  });
}

TEST(DrawerOfClasses, TakesNoCaption) {
  run::PipelineSource source{.sizes = {.channels = 3, .height = 8, .width = 8, .classes = 2}};
  source.keys.target = "epsilon";
  source.keys.schedule = "linear";
  const auto refused = [&](const DrawOptions& options) {
    return test::thrown_message([&] { Drawer::check(source, options, {}); });
  };
  EXPECT_EQ(refused({.drawn = "1"}), "");
  EXPECT_THAT(refused({.prompt = "a star"}), HasSubstr("name one of its 2 classes with --class"));
  EXPECT_THAT(refused({.negative = "x", .drawn = "1"}), HasSubstr("leave it out"));
  EXPECT_THAT(refused({.drawn = "1", .clip_skip = 1}), HasSubstr("clip-skip"));
  EXPECT_THAT(refused({.drawn = "1", .size = "16x8"}), HasSubstr("draws pictures of 8x8 only"));
  EXPECT_THAT(test::thrown_message(
                  [&] { Drawer::check(source, {.drawn = "1", .count = 2}, {.latents = at::zeros({1, 3, 8, 8})}); }),
              HasSubstr("[2, 3, 8, 8], one for each of --count: got [1, 3, 8, 8]"));
}

// The values of a rank do not depend on how many there are.
TEST_F(Drawers, FillTheSameCacheOnOneAndTwoRanks) {
  const run::Config c = latent_config("filled");
  const run::ResolvedModel model = run::resolve_model(c, program());
  const auto& objective = dynamic_cast<const run::DiffusionObjective&>(*model.objective.objective);
  const run::DrawnPictures pictures = run::open_drawn_pictures(c, objective.data_keys(), objective.pipeline());
  const auto filled = [&](int ranks) {
    auto cache = std::make_unique<run::LatentCache>(folder_ / std::to_string(ranks), run::LatentCacheKey{});
    comm::run_ranks(ranks, [&](comm::World& world) {
      run::LatentCache own(cache->folder(), {});
      fill_latents(world, own,
                   {.pipeline = objective.pipeline(),
                    .pictures = {&pictures},
                    .captions = {"", "a star"},
                    .mirror = true,
                    .dtype = at::kDouble},
                   at::kCPU, program());
      EXPECT_TRUE(own.has_caption("a star") && own.has_picture(pictures.at(1).id(pictures.at(1).crops[0])));
    });
    cache->refresh();
    return cache;
  };
  const auto one = filled(1), two = filled(2);
  for (const char* caption : {"", "a star"}) {
    EXPECT_EQ(one->caption(caption).at("text").sizes(), at::IntArrayRef({1, 77, 64}));
    EXPECT_TRUE(at::equal(one->caption(caption).at("text"), two->caption(caption).at("text")));
  }
  for (const run::DrawnPicture& picture : pictures.pictures)
    for (const bool mirrored : {false, true}) {
      const std::string id = picture.id({16, 16});
      EXPECT_EQ(one->picture(id, mirrored).sizes(), at::IntArrayRef({8, 8, 8}));
      EXPECT_TRUE(at::equal(one->picture(id, mirrored), two->picture(id, mirrored))) << id;
    }
  const std::string id = pictures.at(0).id({16, 16});
  EXPECT_FALSE(at::equal(one->picture(id, false), one->picture(id, true)));
}

class GivenPictures : public testing::Test {
 protected:
  /// Writes a picture whose red is the column, whose green is the row, and returns its path.
  std::string write(const std::string& name, int64_t width, int64_t height, uint8_t blue = 0) const {
    data::Picture picture{width, height, {}};
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < width; ++x)
        picture.rgb.insert(picture.rgb.end(), {static_cast<uint8_t>(10 * x), static_cast<uint8_t>(10 * y), blue});
    return folder_.write(name, data::encode_png(picture));
  }
  test::TemporaryFolder folder_;
};

TEST_F(GivenPictures, HaveTheNearestSizeOfTheGrid) {
  const GivenPicture given = read_given_picture(write("a.png", 19, 9), "", {}, 4);
  EXPECT_EQ(given.size, (ops::PictureSize{8, 20}));
  EXPECT_EQ(given.pixels.sizes(), at::IntArrayRef({1, 3, 8, 20}));
  EXPECT_FALSE(given.mask.defined());
  EXPECT_EQ(read_given_picture(write("b.png", 1, 1), "", {}, 4).size, (ops::PictureSize{4, 4}));
}

TEST_F(GivenPictures, KeepTheMiddleOfTheRatio) {
  const at::Tensor pixels = read_given_picture(write("a.png", 16, 8), "", {8, 8}, 4).pixels;
  ASSERT_EQ(pixels.sizes(), at::IntArrayRef({1, 3, 8, 8}));
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(pixels[0][0][3][i].item<double>(), 10.0 * static_cast<double>(i + 4) / 127.5 - 1, 0.01) << i;
    EXPECT_NEAR(pixels[0][1][i][3].item<double>(), 10.0 * static_cast<double>(i) / 127.5 - 1, 0.01) << i;
  }
}

TEST_F(GivenPictures, HaveAMaskOfTheirSize) {
  data::Picture half{8, 8, std::vector<uint8_t>(8 * 8 * 3, 0)};
  for (size_t i = 0; i < half.rgb.size() / 2; ++i) half.rgb[i] = 128;  // the upper rows, just above the half
  const std::string image = write("a.png", 8, 8), mask = folder_.write("mask.png", data::encode_png(half));
  const GivenPicture given = read_given_picture(image, mask, {}, 2);
  const at::Tensor cells = mask_of_cells(given.mask, 2);
  ASSERT_EQ(cells.sizes(), at::IntArrayRef({1, 1, 4, 4}));
  EXPECT_TRUE(cells.narrow(2, 0, 2).eq(1).all().item<bool>());
  EXPECT_TRUE(cells.narrow(2, 2, 2).eq(0).all().item<bool>());
  EXPECT_THAT(test::thrown_message([&] { read_given_picture(image, write("b.png", 8, 6), {}, 2); }),
              HasSubstr("must have the size of the image, 8 x 8: got 8 x 6"));
}

}  // namespace
}  // namespace colossal::diffusion::drawer_test

// Runs of autoencoders of pictures and of clips with LPIPS and a discriminator, in fp64: against a plain loop, in every
// layout that they have, resumed, and refused.
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "colossal/models/autoencoder.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/objectives/reconstruction/latent_noise_samples.h"
#include "diffusion/diffusion_runs.h"
#include "support/layouts.h"
#include "support/plain_lpips.h"
#include "support/plain_scores.h"
#include "support/thrown_message.h"

namespace colossal::diffusion::adversarial_runs_test {
namespace {

using testing::HasSubstr;
using testing::SizeIs;
using Flags = std::vector<std::string>;
using test::NamedTensors;

constexpr int64_t kSteps = 10, kStart = 3;
constexpr double kClip = 0.2, kLpips = 0.7, kGan = 0.3, kKl = 0.01, kEpsilon = 1e-3;
const char kDiscriminated[] = "discriminator.";

class AdversarialRuns : public DiffusionRuns {
 protected:
  void SetUp() override { test::write_lpips(folder_ / "lpips", weights_); }
  run::Config adversarial(const std::string& name, const Flags& flags = {}) const {
    const Flags own{"--run.folder=" + (folder_ / name),
                    "--run.device=cpu",
                    "--run.matmul=mkl",
                    "--precision.mode=fp64",
                    "--parallel.chunk_mib=0.02",
                    "--model.height=16",
                    "--model.width=16",
                    "--model.levels=4,8",
                    "--model.groups=2",
                    concat("--reconstruction.kl=", kKl),
                    concat("--reconstruction.lpips=", kLpips),
                    "--reconstruction.lpips_from=" + (folder_ / "lpips"),
                    concat("--reconstruction.gan=", kGan),
                    concat("--reconstruction.gan_start=", kStart),
                    "--discriminator.name=patch-discriminator-tiny",
                    "--discriminator.optimizer.betas=[0.5,0.9]",
                    "--discriminator.optimizer.learning_rate=0.001",
                    "--data.path=builtin-shapes:40",
                    "--data.held_out=0.2",
                    concat("--optimizer.epsilon=", kEpsilon),
                    "--optimizer.warmup_steps=0",
                    "--optimizer.schedule=constant",
                    "--optimizer.learning_rate=3e-4",
                    concat("--training.clip=", kClip),
                    "--training.batch_size=4",
                    concat("--training.steps=", kSteps),
                    "--training.evaluate_batches=1",
                    "--training.evaluate_every=5"};
    return run::read_given_config(test::source_dir() + "/examples/vae_shapes.toml", test::joined(own, flags)).config;
  }
  /// Clips of one and of five frames, in batches of other rows.
  run::Config clips(const std::string& name, const Flags& flags = {}) const {
    const Flags own{"--model.name=hunyuan-video-vae-tiny",
                    "--model.levels=4,8,8",
                    "--model.groups=2",
                    "--model.factor=4",
                    "--data.frames=1,5",
                    "--data.keep=1,0.5",
                    "--data.batch_sizes=4,2",
                    "--data.fps=8",
                    "--data.path=builtin-shapes:8",
                    "--data.mirror=true",
                    "--training.batch_size=2"};
    return adversarial(name, test::joined(own, flags));
  }
  void expect_plain_loop(bool are_clips, int64_t steps);
  NamedTensors weights_ = test::made_lpips();
};

/// Returns pictures, or the frames of clips, as pictures.
at::Tensor as_pictures(const at::Tensor& images) {
  return images.dim() == 5 ? images.transpose(1, 2).flatten(0, 1) : images;
}

/// Returns copies of the parameters of an engine whose ranks hold all of them.
NamedTensors weights_of(train::Engine& engine) {
  NamedTensors copies;
  for (const checkpoint::NamedTensor& tensor : engine.weights())
    if (!tensor.part) {
      copies[tensor.name] = tensor.value.clone();
    } else {
      at::Tensor& whole = copies[tensor.name];
      if (!whole.defined()) whole = at::zeros(tensor.spec.shape, at::kDouble);
      whole.view({-1}).narrow(0, tensor.part->first, tensor.part->size).copy_(tensor.value.clone());
    }
  return copies;
}

/// AdamW without weight decay.
class PlainAdam {
 public:
  PlainAdam(double rate, double beta_1, double beta_2) : rate_(rate), beta_1_(beta_1), beta_2_(beta_2) {}
  void step(const at::Tensor& value, const std::string& name, const at::Tensor& gradient, int64_t number) {
    at::Tensor &mean = means_[name], &square = squares_[name];
    if (!mean.defined()) mean = at::zeros_like(value), square = at::zeros_like(value);
    mean = mean * beta_1_ + gradient * (1 - beta_1_);
    square = square * beta_2_ + gradient.square() * (1 - beta_2_);
    const auto count = static_cast<double>(number);
    value.sub_(rate_ * (mean / (1 - std::pow(beta_1_, count))) /
               ((square / (1 - std::pow(beta_2_, count))).sqrt() + kEpsilon));
  }

 private:
  double rate_, beta_1_, beta_2_;
  NamedTensors means_, squares_;
};

/// The same training as a plain loop.
class PlainLoop {
 public:
  PlainLoop(const models::ModelShape& shape, NamedTensors lpips, const NamedTensors& weights, double rate)
      : lpips_(std::move(lpips)), of_model_(rate, .9, .95) {
    nn::SerialLayers layers(parameters_);
    model_ = models::make_model(shape, layers);
    for (const auto& [name, value] : weights) {
      if (name.starts_with(kDiscriminated))
        judge_[name.substr(std::size(kDiscriminated) - 1)] = value.clone().requires_grad_();
      else
        parameters_.at(name).value.detach().copy_(value);
    }
  }

  /// Makes step `number`, counted from 1. Returns the loss and the gradient norm.
  std::pair<double, double> step(const tensor::Batch& batch, int64_t number) {
    const at::Tensor images = batch.at("images").to(at::kDouble);
    const models::Stage all{0, static_cast<int64_t>(model_.blocks.size())};
    const models::States end = models::run_stage(model_, all, {}, nn::step_of(batch));
    const at::Tensor found = end[0].transpose(1, 2).reshape(images.sizes());
    const std::vector<at::Tensor> moments = end[1].chunk(2, -1);
    const at::Tensor divergence = (moments[0].square() + moments[1].exp() - 1 - moments[1]).sum() / 2;
    at::Tensor loss = (found - images).abs().mean() + kKl * divergence / static_cast<double>(images.numel()) +
                      kLpips * test::plain_lpips(lpips_, as_pictures(found), as_pictures(images)).mean();
    at::Tensor of_judge;
    if (number > kStart) {
      loss = loss - kGan * scores(found).mean();
      of_judge = (at::relu(1 - scores(images)).mean() + at::relu(1 + scores(found.detach())).mean()) / 2;
    }
    return {loss.item<double>(), update(loss, of_judge, number)};
  }

  /// Returns all parameters under the names of the engine.
  NamedTensors weights() {
    NamedTensors all;
    for (const nn::Parameter& p : parameters_) all[p.name] = p.value.detach();
    for (const auto& [name, value] : judge_) all[kDiscriminated + name] = value.detach();
    return all;
  }

 private:
  at::Tensor scores(const at::Tensor& images) const { return test::plain_scores(judge_, as_pictures(images), 2, 8); }

  double update(const at::Tensor& loss, const at::Tensor& of_judge, int64_t number) {
    std::vector<at::Tensor> own, of_others;
    for (const nn::Parameter& p : parameters_) own.push_back(p.value);
    for (const auto& [name, value] : judge_) of_others.push_back(value);
    const std::vector<at::Tensor> gradients = torch::autograd::grad({loss}, own, {}, /*retain_graph=*/true);
    std::vector<at::Tensor> judged;
    if (of_judge.defined()) judged = torch::autograd::grad({of_judge}, of_others);
    double squares = 0;
    for (const auto& list : {gradients, judged})
      for (const at::Tensor& gradient : list) squares += gradient.square().sum().item<double>();
    const double norm = std::sqrt(squares), factor = std::min(1.0, kClip / norm);
    size_t i = 0;
    for (const nn::Parameter& p : parameters_)
      of_model_.step(p.value.detach(), p.name, gradients[i++] * factor, number);
    i = 0;
    for (const auto& [name, value] : judge_)
      of_judge_.step(value.detach(), name, judged.empty() ? at::zeros_like(value) : judged[i++] * factor, number);
    return norm;
  }

  nn::Parameters parameters_{{}, {.dtype = at::kDouble}};
  models::Model model_;
  NamedTensors judge_, lpips_;
  PlainAdam of_model_, of_judge_{0.001, .5, .9};
};

/// Compares runs of one and of two ranks with the plain loop.
void AdversarialRuns::expect_plain_loop(bool are_clips, int64_t steps) {
  const auto config = [&](const Flags& flags) { return are_clips ? clips("run", flags) : adversarial("run", flags); };
  const run::Config one = config({});
  NamedTensors first;
  test::run_course(one, program(), 0, [&](train::Engine& engine) { first = weights_of(engine); });
  run::RunData data = run::open_data(one, program(), "", 0, at::kCPU);
  PlainLoop loop(data.shape, weights_, first, one.optimizer.learning_rate);
  std::vector<double> losses, norms;
  std::set<int64_t> frames;
  for (int64_t step = 1; step <= steps; ++step) {
    const tensor::Batch batch = data.training->next();
    frames.insert(run::frames_of(batch));
    const auto [loss, norm] = loop.step(batch, step);
    losses.push_back(loss), norms.push_back(norm);
  }
  EXPECT_EQ(frames, are_clips ? (std::set<int64_t>{1, 5}) : std::set<int64_t>{1});
  EXPECT_GT(*std::max_element(norms.begin(), norms.end()), kClip) << "gradients are clipped together";
  const NamedTensors wanted = loop.weights();
  // The gradient of LPIPS is steep where features are small, as those of some frames are.
  const double rounding = are_clips ? 1e-10 : 1e-11, steep = are_clips ? 1e-7 : 1e-10;
  for (const char* ranks : {"1", "2"}) {
    NamedTensors found;
    std::mutex mutex;
    const std::vector<double> course =
        test::run_course(config({concat("--parallel.data=", ranks)}), program(), steps, [&](train::Engine& engine) {
          const std::lock_guard lock(mutex);
          found = weights_of(engine);
        });
    size_t at = 0;
    for (int64_t step = 0; step < steps; ++step) {
      EXPECT_NEAR(course.at(at++), losses[step], rounding) << ranks << " ranks, step " << step;
      EXPECT_NEAR(course.at(at++), norms[step], steep * norms[step]) << ranks << " ranks, step " << step;
      if (step >= kStart) at += 2;  // the metrics of the discriminator
    }
    ASSERT_EQ(found.size(), wanted.size());
    for (const auto& [name, value] : wanted) {
      EXPECT_TRUE(at::allclose(found.at(name), value, 0, 1e-10)) << ranks << " ranks, " << name;
      // Scores of both kinds of pictures within the margins have opposite gradients with respect to their bias.
      EXPECT_EQ(at::equal(first.at(name), value), name == "discriminator.head.bias") << name;
    }
  }
}

TEST_F(AdversarialRuns, EqualAPlainLoop) { expect_plain_loop(/*are_clips=*/false, kSteps); }

TEST_F(AdversarialRuns, EqualAPlainLoopOfClips) { expect_plain_loop(/*are_clips=*/true, kStart + 4); }

TEST_F(AdversarialRuns, HaveTheCourseOfOneProcessInEveryLayout) {
  const auto course = [&](const Flags& layout) {
    return test::run_course(adversarial("run", test::joined({"--reconstruction.gan_start=1"}, layout)), program());
  };
  const std::vector<double> want = course({});
  ASSERT_THAT(want, SizeIs(3 * 2 + 2 * 2 + 5 + 1));
  const test::TemporaryFolder disk;
  for (const Flags& layout :
       {Flags{"--parallel.data=2", "--parallel.zero=1"}, Flags{"--parallel.data=2", "--parallel.zero=3"},
        Flags{"--memory.host=64MiB", "--memory.recompute=block", "--training.accumulate=2"},
        Flags{"--parallel.data=2", "--parallel.zero=3", "--memory.host=64MiB", "--memory.disk=" + disk.path()}})
    test::expect_near(course(layout), want, testing::PrintToString(layout), 1e-2);
}

TEST_F(AdversarialRuns, ContinueBitForBit) {
  const Flags flags{"--training.steps=6", "--training.save_every=2", "--training.evaluate_every=2",
                    "--reconstruction.gan_start=2"};
  const run::Config whole = adversarial("whole", flags), parts = adversarial("parts", flags);
  train(whole);
  train(parts, train::Start::Overwrite, 1);
  train(parts, train::Start::Resume, 3);
  train(parts, train::Start::Resume);
  for (const char* name :
       {"loss", "grad_norm", "generator_loss", "discriminator_loss", "eval_loss", "eval_lpips", "eval_psnr"})
    EXPECT_EQ(metric(parts, name), metric(whole, name)) << name;
  EXPECT_THAT(metric(whole, "generator_loss"), SizeIs(4)) << "after two steps";
  EXPECT_THAT(metric(whole, "eval_lpips"), SizeIs(3));
}

// The run is stopped between batches of both lengths.
TEST_F(AdversarialRuns, ContinueWithClipsBitForBit) {
  const Flags flags{"--training.steps=6", "--training.save_every=1", "--training.evaluate_every=3",
                    "--reconstruction.gan_start=1"};
  const run::Config whole = clips("whole", flags), parts = clips("parts", flags);
  train(whole);
  train(parts, train::Start::Overwrite, 2);
  train(parts, train::Start::Resume, 1);
  train(parts, train::Start::Resume);
  for (const char* name : {"loss", "tokens", "grad_norm", "generator_loss", "eval_loss", "eval_lpips", "eval_psnr"})
    EXPECT_EQ(metric(parts, name), metric(whole, name)) << name;
  const std::vector<double> tokens = metric(whole, "tokens");
  EXPECT_THAT(tokens, testing::Contains(4 * 16 * 16));
  EXPECT_THAT(tokens, testing::Contains(2 * 5 * 16 * 16));
}

TEST_F(AdversarialRuns, HaveTheCourseOfOneProcessWithClips) {
  const auto course = [&](const Flags& layout) {
    return test::run_course(clips("run", test::joined({"--reconstruction.gan_start=1"}, layout)), program());
  };
  const std::vector<double> want = course({});
  ASSERT_THAT(want, SizeIs(3 * 2 + 2 * 2 + 5 + 1));
  for (const Flags& layout : {Flags{"--parallel.data=2", "--parallel.zero=3", "--memory.recompute=block"},
                              Flags{"--memory.host=64MiB", "--training.accumulate=2"}})
    test::expect_near(course(layout), want, testing::PrintToString(layout), 1e-2);
}

// Overflows skip steps until the loss scale fits, and no loss is lost by them.
TEST_F(AdversarialRuns, LearnInFp16) {
  const run::Config c = adversarial("fp16", {"--precision.mode=fp16", "--precision.loss_scale=1e6",
                                             "--reconstruction.gan_start=0", "--training.steps=12"});
  train(c);
  EXPECT_THAT(metric(c, "loss"), testing::Each(testing::Truly([](double loss) { return std::isfinite(loss); })));
  const std::vector<double> norms = metric(c, "grad_norm");
  EXPECT_EQ(norms.front(), std::numeric_limits<double>::infinity());
  EXPECT_THAT(norms, testing::Each(testing::Truly([](double norm) { return !std::isnan(norm); })));
  EXPECT_GT(std::count_if(norms.begin(), norms.end(), [](double norm) { return std::isfinite(norm); }), 2);
}

TEST_F(AdversarialRuns, RefuseLayoutsAndKeysThatDoNotFit) {
  const auto refused = [&](const Flags& flags) {
    return test::thrown_message([&] { train(adversarial("bad", flags)); });
  };
  for (const char* axis : {"tensor", "sequence", "pipeline"})
    EXPECT_THAT(refused({concat("--parallel.", axis, ".size=2")}),
                HasSubstr(concat("gan needs parallel.", axis, ".size = 1")));
  const Flags off{"--reconstruction.gan=0", "--reconstruction.gan_start=0"};
  EXPECT_THAT(refused(off), HasSubstr("[discriminator] the table needs reconstruction.gan above 0"));
  EXPECT_THAT(refused({"--discriminator.name=patch-discriminater"}), HasSubstr("patch-discriminator"));
  EXPECT_THAT(refused({"--discriminator.features=8"}), HasSubstr("discriminator.features"));
  EXPECT_THAT(refused({"--discriminator.name=patch-discriminator"}), HasSubstr("at least 24 x 24 pixels"));
  EXPECT_THAT(refused({"--reconstruction.lpips_from=" + (folder_ / "nowhere")}), HasSubstr("which has none"));
  EXPECT_THAT(refused({"--data.frames=5"}),
              HasSubstr("need a model of clips: got one of pictures; remove data.frames"));
  const auto refused_clips = [&](const Flags& flags) {
    return test::thrown_message([&] { train(clips("bad", flags)); });
  };
  EXPECT_THAT(refused_clips({"--data.frames=1,6"}), HasSubstr("clips of 4 k + 1 frames: got 6; nearest: 5"));
  EXPECT_THAT(refused_clips({"--data.frames=1"}), HasSubstr("keep"));
  EXPECT_THAT(refused_clips({"--data.fps=60"}), HasSubstr("at most 50 frames a second: got 60"));
  EXPECT_THAT(refused_clips({"--parallel.tensor.size=2"}), HasSubstr("gan needs parallel.tensor.size = 1"));
}

}  // namespace
}  // namespace colossal::diffusion::adversarial_runs_test

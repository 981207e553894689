// A custom module, trained under ZeRO 3 in bf16. The module has no code for ranks.
//
//   own_module FILE.toml [--section.key=value ...]      resumes from the newest checkpoint in run.folder, if there is
//   one
#include <colossal.h>
#include <torch/nn.h>

#include <cmath>
#include <cstdio>

namespace {

constexpr int64_t kClasses = 3;

/// A classifier of points in a plane. Any module works; this one has a norm with buffers and a residual branch.
struct Net : torch::nn::Module {
  explicit Net(int64_t width) {
    in = register_module("in", torch::nn::Linear(2, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    middle = register_module("middle", torch::nn::Linear(width, width));
    out = register_module("out", torch::nn::Linear(width, kClasses));
  }
  at::Tensor forward(const at::Tensor& points) {
    at::Tensor x = torch::relu(norm->forward(in->forward(points)));
    x = x + torch::relu(middle->forward(x));
    return out->forward(x);
  }
  torch::nn::Linear in{nullptr}, middle{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

struct Batch {
  at::Tensor points;  // [rows, 2]
  at::Tensor labels;  // [rows]
};

/// Returns points on three arms of a spiral, drawn from `seed`.
Batch spirals(int64_t rows, uint64_t seed) {
  const at::Generator random = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor labels = torch::randint(kClasses, {rows}, random, at::kLong);
  const at::Tensor radius = torch::rand({rows}, random);
  const at::Tensor angle = 5 * radius + labels * (2 * M_PI / kClasses) + 0.1 * torch::randn({rows}, random);
  return {torch::stack({radius * angle.cos(), radius * angle.sin()}, 1), labels};
}

/// Trains one rank of the run.
void train(colossal::comm::World& world, const colossal::Config& config) {
  auto module = std::make_shared<Net>(128);
  const auto training = colossal::initialize(world, *module, config);
  const auto loss_of = [&](const Batch& b) {  // the mean over this rank's rows, in fp32
    return torch::cross_entropy_loss(module->forward(training->input(b.points)).to(at::kFloat),
                                     training->input(b.labels));
  };
  const std::string folder = config.run.folder + "/checkpoints";
  const bool is_first = world.rank() == 0;
  if (training->resume(folder) && is_first)
    std::printf("goes on after step %ld\n", static_cast<long>(training->steps_done()));

  const int64_t parts = config.training.accumulate, rows = config.training.batch_size / (world.size() * parts);
  while (training->steps_done() < config.training.steps) {
    training->zero_grad();
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t turn = training->steps_done() * parts + part;
      training->backward(loss_of(spirals(rows, turn * world.size() + world.rank())));  // other rows on every rank
    }
    training->step();
    const int64_t step = training->steps_done();
    if (step % 20 == 0 || step == 1) {
      const double loss = training->mean(training->loss());  // every rank must call
      if (is_first) std::printf("step %4ld  loss %.4f\n", static_cast<long>(step), loss);
    }
    if (step == config.training.steps || (config.training.save_every > 0 && step % config.training.save_every == 0))
      training->save(folder);
  }

  const at::NoGradGuard no_grad;
  module->eval();
  const Batch unseen = spirals(1000, ~uint64_t{0});
  const double right =
      module->forward(training->input(unseen.points)).argmax(1).eq(training->input(unseen.labels)).sum().item<double>();
  training->end_pass();
  if (is_first) std::printf("accuracy on points never seen: %.1f %%\n", right / 10);
}

}  // namespace

int main(int argc, char** argv) { return colossal::run_module(argc, argv, train); }

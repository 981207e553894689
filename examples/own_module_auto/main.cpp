// A custom module whose operators are divided over ranks by a plan. Neither the module nor its loss has code for ranks.
//
//   own_module_auto FILE.toml [--section.key=value ...]    resumes from the newest checkpoint in run.folder, if any
//
// Afterwards: colossal plan --graph runs/own_module_auto/graph.json --plan runs/own_module_auto/plan.json
#include <colossal.h>
#include <torch/nn.h>

#include <cmath>
#include <cstdio>

namespace {

constexpr int64_t kClasses = 3;

/// A classifier of points in a plane, with a norm that has buffers, a residual branch and dropout.
struct Net : torch::nn::Module {
  explicit Net(int64_t width) {
    in = register_module("in", torch::nn::Linear(2, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    middle = register_module("middle", torch::nn::Linear(width, width));
    drop = register_module("drop", torch::nn::Dropout(0.1));
    out = register_module("out", torch::nn::Linear(width, kClasses));
  }
  at::Tensor forward(const at::Tensor& points) {
    at::Tensor x = torch::relu(norm->forward(in->forward(points)));
    x = x + drop->forward(torch::relu(middle->forward(x)));
    return out->forward(x);
  }
  torch::nn::Linear in{nullptr}, middle{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout drop{nullptr};
};

/// Returns points [rows, 2] on three arms of a spiral and their labels [rows], drawn from `seed`.
std::vector<at::Tensor> spirals(int64_t rows, uint64_t seed) {
  const at::Generator random = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor labels = torch::randint(kClasses, {rows}, random, at::kLong);
  const at::Tensor radius = torch::rand({rows}, random);
  const at::Tensor angle = 5 * radius + labels * (2 * M_PI / kClasses) + 0.1 * torch::randn({rows}, random);
  return {torch::stack({radius * angle.cos(), radius * angle.sin()}, 1), labels};
}

/// Trains one rank of the run.
void train(colossal::comm::World& world, const colossal::Config& config) {
  torch::manual_seed(static_cast<uint64_t>(config.training.seed));  // every run starts with the same values
  auto net = std::make_shared<Net>(128);
  const auto loss = [&](const std::vector<at::Tensor>& in) {
    return torch::cross_entropy_loss(net->forward(in[0]).to(at::kFloat), in[1]);
  };
  const int64_t parts = config.training.accumulate, rows = config.training.batch_size / parts;
  const auto training = colossal::auto_parallel::initialize(world, *net, loss, spirals(rows, 0), config);
  const std::string folder = config.run.folder + "/checkpoints";
  const bool is_first = world.rank() == 0;
  if (training->resume(folder) && is_first)
    std::printf("goes on after step %ld\n", static_cast<long>(training->steps_done()));

  const int64_t own = rows / training->replicas();
  while (training->steps_done() < config.training.steps) {
    training->zero_grad();
    for (int64_t part = 0; part < parts; ++part) {
      std::vector<at::Tensor> batch = spirals(rows, training->steps_done() * parts + part + 1);
      for (at::Tensor& tensor : batch) tensor = tensor.narrow(0, training->replica() * own, own);
      training->backward(batch);
    }
    training->step();
    const int64_t step = training->steps_done();
    if (is_first && (step % 20 == 0 || step == 1))
      std::printf("step %4ld  loss %.4f\n", static_cast<long>(step), training->loss());
    if (step == config.training.steps || (config.training.save_every > 0 && step % config.training.save_every == 0))
      training->save(folder);
  }

  training->gather();  // whole parameters and statistics in *net, on every rank
  const at::NoGradGuard no_grad;
  net->eval();
  const std::vector<at::Tensor> unseen = spirals(1000, ~uint64_t{0});
  const at::Tensor points = unseen[0].to(net->in->weight.options());
  const double right = net->forward(points).argmax(1).cpu().eq(unseen[1]).sum().item<double>();
  if (is_first) std::printf("accuracy on points never seen: %.1f %%\n", right / 10);
}

}  // namespace

int main(int argc, char** argv) { return colossal::run_module(argc, argv, train); }

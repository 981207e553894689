#include "network.h"

#include <ATen/ATen.h>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"

namespace models = colossal::models;
namespace nn = colossal::nn;
namespace ops = colossal::ops;
namespace tensor = colossal::tensor;
using colossal::concat;

void NetworkSizes::fields(colossal::Fields& f) {
  f.integer("inputs", inputs, "numbers", "numbers that a sample has", 1, 1 << 20);
  f.integer("outputs", outputs, "numbers", "numbers that are predicted", 1, 1 << 20);
}

namespace {

constexpr double kDeviation = 0.2;  // standard deviation of initial weights; the layers are narrow

/// Two matrices with an activation between them, written as if for one process.
class Pair {
 public:
  Pair(const std::string& name, int64_t in, int64_t inside, int64_t out, nn::Layers& make)
      : up_(make.expand(name + ".up", in, inside, {.deviation = kDeviation})),
        down_(make.contract(name + ".down", inside, out, {.deviation = kDeviation})) {}

  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    return down_->forward(up_->forward(x).map([](const at::Tensor& inside) { return ops::gelu(inside); }, step));
  }

 private:
  std::unique_ptr<nn::Expand> up_;
  std::unique_ptr<nn::Contract> down_;
};

models::Model make(const models::ModelShape& s, nn::Layers& layers) {
  const auto sizes = s.own.as<NetworkSizes>();
  const at::ScalarType dtype = layers.parameters().options().dtype;
  models::Model model;
  model.fields = {"inputs"};
  const auto first = std::make_shared<const Pair>("inputs", sizes.inputs, s.ffn, s.hidden, layers);
  // A layout may split rows and features of hidden states, and the inputs must be split in the same way.
  model.embed = [first, dtype, part = layers.field_part()](const tensor::Batch& batch, const nn::ForwardContext& step) {
    return first->forward(part(batch.field("inputs"), step).to(dtype), step);
  };
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string name = concat("blocks.", i);
    const std::shared_ptr<nn::Norm> norm = layers.layer_norm(name + ".norm", s.hidden, {s.norm_epsilon});
    const auto pair = std::make_shared<const Pair>(name, s.hidden, s.ffn, s.hidden, layers);
    model.blocks.push_back([norm, pair](const at::Tensor& x, const nn::ForwardContext& step) {
      return x + pair->forward(norm->forward(x), step);
    });
  }
  const std::shared_ptr<nn::Norm> norm = layers.layer_norm("norm", s.hidden, {s.norm_epsilon});
  const std::shared_ptr<nn::Outputs> outputs =
      layers.outputs("head", s.hidden, sizes.outputs, {.deviation = kDeviation});
  model.norm = [norm, outputs](const at::Tensor& x, const nn::ForwardContext& step) {
    return outputs->forward(norm->forward(x), step);
  };
  return model;
}

}  // namespace

models::Architecture network() {
  return {.name = "network",
          .own = NetworkSizes{},
          .presets = {{"network-tiny", {.hidden = 32, .layers = 4, .ffn = 64}}},
          .make = make,
          .task =
              [](const models::ModelShape&) {
                return models::Task{
                    .reads = models::Reads::Fields, .writes = models::Writes::Nothing, .objective = "regression"};
              },
          .unused = {"heads", "kv_heads", "head_dim", "positions"}};
}

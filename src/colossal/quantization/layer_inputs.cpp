#include "colossal/quantization/layer_inputs.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"

namespace colossal::quantization {
namespace {

class RecordingProduct final : public nn::Product {
 public:
  RecordingProduct(std::shared_ptr<const nn::Product> inner, std::string weight,
                   std::shared_ptr<InputRecorder::State> state)
      : inner_(std::move(inner)), weight_(std::move(weight)), state_(std::move(state)) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    if (state_->watched.contains(weight_)) state_->inputs[weight_].add(x);
    return inner_->forward(x, weight, bias, out, saved);
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    return inner_->backward(dy, saved, wanted);
  }

 private:
  std::shared_ptr<const nn::Product> inner_;
  std::string weight_;
  std::shared_ptr<InputRecorder::State> state_;
};

}  // namespace

void LayerInputs::add(const at::Tensor& x) {
  const at::Tensor r = x.detach().to(at::kDouble), magnitudes = r.abs();
  const int64_t all = rows + r.size(0);
  const at::Tensor sum = at::matmul(r.t(), r);
  const double share = static_cast<double>(rows) / static_cast<double>(all);
  mean = rows == 0 ? magnitudes.mean(0) : mean * share + magnitudes.mean(0) * (1 - share);
  moments = rows == 0 ? sum : moments.add_(sum);
  largest = rows == 0 ? magnitudes.amax(0) : at::maximum(largest, magnitudes.amax(0));
  rows = all;
}

InputRecorder::InputRecorder() : state_(std::make_shared<State>()) {}

std::shared_ptr<const nn::Product> InputRecorder::wrap(std::shared_ptr<const nn::Product> product,
                                                       const nn::Parameter& weight) {
  return std::make_shared<RecordingProduct>(std::move(product), weight.name, state_);
}

void InputRecorder::watch(std::set<std::string> weights) {
  state_->inputs.clear();
  state_->watched = std::move(weights);
}

const LayerInputs& InputRecorder::of(const std::string& weight) const {
  const LayerInputs* inputs = find(weight);
  require(inputs, "quantization", "no sample reached the layer of ", weight, ": its method calibrates on layer inputs");
  return *inputs;
}

const LayerInputs* InputRecorder::find(const std::string& weight) const {
  const auto found = state_->inputs.find(weight);
  return found == state_->inputs.end() ? nullptr : &found->second;
}

}  // namespace colossal::quantization

#include "colossal/quantization/quantize.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <set>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/quantization/gptq.h"
#include "colossal/quantization/layer_inputs.h"
#include "colossal/quantization/scales.h"

namespace colossal::quantization {
namespace {

/// Returns options for parameters whose layers `recorder` watches.
nn::Parameters::Options watched(nn::Parameters::Options options, InputRecorder& recorder) {
  options.without_memory = true;
  options.products = {[&recorder](std::shared_ptr<const nn::Product> product, const nn::Parameter& weight,
                                  nn::Parameters&) { return recorder.wrap(std::move(product), weight); }};
  return options;
}

/// Returns true if quantize() rounds this parameter of a block: a matrix, or a stack of them.
bool is_rounded(const nn::Parameter& p) {
  return p.hidden_matrix && p.spec.shape.size() == (p.is_stack ? 3U : 2U) && p.name.starts_with("blocks.");
}

/// A matrix to round: a parameter, or one expert's matrix of a stack.
struct Matrix {
  std::string name;
  at::Tensor value;  ///< [out, in], a view of the parameter
};

std::vector<Matrix> matrices_of(const nn::Parameter& p) {
  if (!p.is_stack) return {{p.name, p.value}};
  std::vector<Matrix> all;
  for (int64_t e = 0; e < p.spec.shape[0]; ++e)
    all.push_back({concat(p.name, ".", e), p.value.defined() ? p.value[e] : at::Tensor()});
  return all;
}

/// Returns all states as one tensor.
at::Tensor values_of(const models::States& states) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& state : states)
    if (state.defined()) values.push_back(state.flatten());
  return at::cat(values);
}

/// A model over the caller's parameter values, and the hidden states of the samples in front of the next block.
class Passage {
 public:
  Passage(const models::ModelShape& shape, nn::Parameters& values, const at::Tensor& samples,
          const QuantizeOptions& options)
      : options_(options),
        parameters_(values.coordinates(), watched(values.options(), recorder_)),
        layers_(parameters_),
        model_(models::make_model(shape, layers_)) {
    for (nn::Parameter& p : parameters_) p.value.set_data(values.at(p.name).value.detach());
    for (nn::Buffer& b : parameters_.buffers())
      for (const nn::Buffer& own : values.buffers())
        if (own.name == b.name) b.value = own.value;
    if (!samples.defined()) return;
    const int64_t rows = std::max<int64_t>(1, options.tokens_at_once / samples.size(1));
    for (const at::Tensor& part : samples.split(rows)) {
      const at::Tensor positions = at::arange(part.size(1), at::kLong).expand({part.size(0), -1});
      const nn::ForwardContext& step = steps_.emplace_back(nn::step_of(nn::token_batch(part, positions)));
      hidden_.push_back(models::run_stage(model_, {.ends = false}, {}, step));
    }
  }

  Quantized run(const std::function<void(int64_t)>& progress) {
    Quantized done;
    for (int64_t block = 0; block < static_cast<int64_t>(model_.blocks.size()); ++block) {
      if (options_.method == Method::Awq || options_.method == Method::SmoothQuant) fold(block, done.without_factors);
      if (options_.rounds) round(block, done);
      recorder_.watch({});
      for (size_t i = 0; i < hidden_.size(); ++i) hidden_[i] = output(block, hidden_[i], steps_[i]);
      if (progress) progress(block);
    }
    return done;
  }

 private:
  models::States output(int64_t block, const models::States& states, const nn::ForwardContext& step) {
    return models::run_stage(model_, {.first = block, .last = block + 1, .embeds = false, .ends = false}, states, step);
  }
  /// Passes the samples through the block to record the inputs of these layers.
  void record(int64_t block, std::set<std::string> weights) {
    recorder_.watch(std::move(weights));
    for (size_t i = 0; i < hidden_.size(); ++i) output(block, hidden_[i], steps_[i]);
  }

  void fold(int64_t block, std::vector<std::string>& without_factors) {
    std::vector<Fold> folds;
    std::set<std::string> weights;
    recorder_.watch({});
    models::States one = hidden_.front();
    for (at::Tensor& state : one)
      if (state.defined()) state = state.narrow(0, 0, 1);
    const nn::ForwardContext its_step = nn::step_of(steps_.front().batch->part(0, 1));
    for (Fold& fold : folds_of(model_.shape, parameters_, block)) {
      if (options_.method == Method::SmoothQuant && !fold.is_norm) continue;
      if (changes_nothing(fold, parameters_, [&] { return values_of(output(block, one, its_step)); })) {
        weights.insert(fold.consumers.begin(), fold.consumers.end());
        folds.push_back(std::move(fold));
      }
    }
    for (const nn::Parameter* p : rounded_in(block))
      if (!weights.contains(p->name)) without_factors.push_back(p->name);
    record(block, weights);
    for (const Fold& fold : folds) {
      std::vector<at::Tensor> readers;
      for (const std::string& name : fold.consumers) readers.push_back(parameters_.at(name).value.detach());
      const LayerInputs& inputs = recorder_.of(fold.consumers.front());
      apply(fold, parameters_,
            options_.method == Method::Awq ? awq_scales(readers, inputs, options_.rounding)
                                           : smoothing_scales(readers, inputs));
    }
  }

  void round(int64_t block, Quantized& done) {
    int64_t experts = 0;
    std::set<int64_t> unseen;  // indices of the block's experts that no token chose
    for (const nn::Parameter* p : rounded_in(block)) {
      const std::vector<Matrix> matrices = matrices_of(*p);
      if (options_.method == Method::Gptq) {
        std::set<std::string> names;
        for (const Matrix& matrix : matrices) names.insert(matrix.name);
        record(block, std::move(names));
      }
      if (p->is_stack) experts = p->spec.shape[0];
      for (size_t i = 0; i < matrices.size(); ++i) {
        if (!round(matrices[i], p->is_stack, done)) unseen.insert(static_cast<int64_t>(i));
      }
    }
    done.experts += experts;
    done.experts_without_tokens += static_cast<int64_t>(unseen.size());
  }

  /// Rounds a matrix. Returns false if it is an expert's, no token chose the expert, and the method needs tokens.
  bool round(const Matrix& matrix, bool is_expert, Quantized& done) {
    const bool looks = options_.method == Method::Gptq;
    const LayerInputs* inputs = looks ? recorder_.find(matrix.name) : nullptr;
    const at::Tensor value = matrix.value.detach();
    if (looks && !is_expert) inputs = &recorder_.of(matrix.name);
    ops::GroupCodes codes =
        inputs ? gptq(value, inputs->moments, options_.rounding) : ops::round_to_codes(value, options_.rounding);
    value.copy_(codes.values());
    done.codes.emplace(matrix.name, std::move(codes));
    return !looks || inputs;
  }

  /// Returns a block's matrices and stacks in order of creation, which is the order in which the block uses them.
  std::vector<const nn::Parameter*> rounded_in(int64_t block) const {
    std::vector<const nn::Parameter*> found;
    const std::string prefix = concat("blocks.", block, ".");
    for (const nn::Parameter& p : parameters_)
      if (is_rounded(p) && p.name.starts_with(prefix)) found.push_back(&p);
    return found;
  }

  const QuantizeOptions& options_;
  InputRecorder recorder_;
  nn::Parameters parameters_;
  nn::SerialLayers layers_;
  models::Model model_;
  std::vector<models::States> hidden_;     // inputs of the next block, one per part of the samples
  std::vector<nn::ForwardContext> steps_;  // one per part of the samples
};

void check_samples(const models::ModelShape& shape, const at::Tensor& samples) {
  require(samples.defined() && samples.dim() == 2 && samples.numel() > 0, "quantization",
          "this method calibrates on layer inputs; give it samples (--data)");
  require(samples.size(1) <= shape.positions, "quantization", "samples must fit the model's ", shape.positions,
          " positions: got ", samples.size(1), " tokens");
  require(samples.min().item<int64_t>() >= 0 && samples.max().item<int64_t>() < shape.vocabulary, "quantization",
          "ids must lie in the model's vocabulary of ", shape.vocabulary, "; is this the model's tokenizer?");
}

}  // namespace

const std::vector<std::string>& method_names() {
  static const std::vector<std::string> names{"rtn", "gptq", "awq", "smoothquant"};
  return names;
}

std::vector<std::string> matrices_of_blocks(const nn::Parameters& parameters) {
  std::vector<std::string> names;
  for (const nn::Parameter& p : parameters)
    if (is_rounded(p))
      for (Matrix& matrix : matrices_of(p)) names.push_back(std::move(matrix.name));
  return names;
}

Method method_of(const std::string& name) {
  const auto& names = method_names();
  const auto found = std::find(names.begin(), names.end(), name);
  require(found != names.end(), "quantization", "a method must be one of rtn, gptq, awq, smoothquant: got ", name);
  return static_cast<Method>(found - names.begin());
}

Quantized quantize(const models::ModelShape& shape, nn::Parameters& parameters, const at::Tensor& samples,
                   const QuantizeOptions& options, const std::function<void(int64_t)>& progress) {
  const models::Task task = shape.task();
  require(task.continues(), "quantization", "quantization needs a model that predicts the next token: got a ",
          shape.architecture->name, ", which ", task.purpose());
  const bool looks = options.method != Method::Rtn;
  if (looks) check_samples(shape, samples);
  const at::NoGradGuard no_grad;
  Passage passage(shape, parameters, looks ? samples : at::Tensor(), options);
  return passage.run(progress);
}

}  // namespace colossal::quantization

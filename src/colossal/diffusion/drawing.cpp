#include "colossal/diffusion/drawing.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/models/denoiser.h"
#include "colossal/nn/batch_step.h"
#include "colossal/noise/guidance.h"
#include "colossal/ops/random.h"
#include "colossal/tensor/batch.h"

namespace colossal::diffusion {
namespace {

using tensor::Dim;

/// Runs the passes of a drawing, with classes and without.
class Predictor {
 public:
  Predictor(distributed::DistributedModel& model, const Drawing& drawing)
      : model_(model),
        shape_(model.decoding_model().shape),
        sizes_(models::denoiser_of(shape_)),
        guidance_(noise::guidance_factors(drawing.guidance)),
        rescale_(drawing.rescale),
        is_guided_(drawing.guidance != 1) {
    std::vector<int64_t> classes = drawing.classes;
    rows_ = static_cast<int64_t>(classes.size());
    if (is_guided_) classes.insert(classes.end(), classes.size(), sizes_.classes);
    // The layout may need more rows; their results are not used.
    while (static_cast<int64_t>(classes.size()) % model.decoding_model().batch_parts != 0) classes.push_back(0);
    classes_ = at::tensor(classes, at::kLong);
  }

  const models::DenoiserSizes& sizes() const { return sizes_; }
  at::ScalarType dtype() const { return at::promote_types(model_.parameters().options().dtype, at::kFloat); }

  /// Returns the guided prediction [n, outputs, h, w] for the inputs [n, C, h, w].
  at::Tensor predict(const at::Tensor& inputs, double time) const {
    const int64_t all = classes_.size(0);
    std::vector<at::Tensor> copies(static_cast<size_t>((all + rows_ - 1) / rows_), inputs);
    tensor::Batch batch;
    batch.add("noised", {at::cat(copies).narrow(0, 0, all), {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
    batch.add("times", {at::full({all}, time, inputs.options()), {Dim::Row}});
    batch.add("classes", {classes_, {Dim::Row}});
    const at::Tensor like =
        at::empty({all, sizes_.outputs, sizes_.height, sizes_.width},
                  at::TensorOptions(model_.parameters().options().device).dtype(inputs.scalar_type()));
    const at::Tensor outputs = model_
                                   .everywhere(
                                       nn::step_of(batch),
                                       [&](int, const models::States& end, const nn::ForwardContext&) {
                                         return models::predicted_picture(shape_, end.at(0)).to(inputs.scalar_type());
                                       },
                                       like)
                                   .to(at::kCPU);
    const at::Tensor told = outputs.narrow(0, 0, rows_);
    return is_guided_ ? guided(told, outputs.narrow(0, rows_, rows_)) : told;
  }

 private:
  at::Tensor guided(const at::Tensor& told, const at::Tensor& untold) const {
    at::Tensor both = guidance_.conditional * told + guidance_.unconditional * untold;
    if (rescale_ == 0) return both;
    const auto deviation = [](const at::Tensor& x) { return x.flatten(1).std(1, /*unbiased=*/true); };
    const at::Tensor before = deviation(told), after = deviation(both);
    for (int64_t row = 0; row < rows_; ++row)
      both[row] *= noise::rescale_factor(before[row].item<double>(), after[row].item<double>(), rescale_);
    return both;
  }

  distributed::DistributedModel& model_;
  models::ModelShape shape_;
  models::DenoiserSizes sizes_;
  noise::GuidanceFactors guidance_;
  double rescale_;
  bool is_guided_;
  int64_t rows_ = 0;
  at::Tensor classes_;
};

/// Returns standard normal numbers of each picture, [n, C, h, w], in fp32 and then in `dtype`.
at::Tensor fresh_noise(const std::vector<uint64_t>& seeds, const models::DenoiserSizes& sizes, uint64_t step,
                       at::ScalarType dtype) {
  const std::vector<int64_t> of_one{sizes.channels, sizes.height, sizes.width}, start(3, 0);
  std::vector<at::Tensor> pictures;
  for (const uint64_t seed : seeds) {
    at::Tensor numbers = at::empty(of_one, at::kFloat);
    ops::fill_normal(numbers, of_one, start, start, of_one, derive_seed(derive_seed(seed, "drawing"), step), 1);
    pictures.push_back(numbers);
  }
  return at::stack(pictures).to(dtype);
}

/// The tensors of which a step makes the next sample.
struct Parts {
  at::Tensor sample, base, output, noise;
  std::deque<at::Tensor> estimates;  // the newest first
};

at::Tensor combined(const noise::Combination& factors, const Parts& parts) {
  at::Tensor sum = at::zeros_like(parts.sample);
  const auto add = [&](double factor, const at::Tensor& x) {
    if (factor != 0) sum += factor * x;
  };
  add(factors.sample, parts.sample);
  add(factors.base, parts.base);
  add(factors.output, parts.output);
  add(factors.noise, parts.noise);
  for (size_t i = 0; i < parts.estimates.size() && i < factors.estimates.size(); ++i)
    add(factors.estimates[i], parts.estimates[i]);
  return sum;
}

/// Returns the noise that a predicted variance asks for: `variance` is the model's second output.
at::Tensor with_variance(const at::Tensor& noise, const at::Tensor& variance, const noise::LogVariances& logs) {
  const at::Tensor share = (variance + 1) / 2;
  return at::exp((share * logs.large + (1 - share) * logs.small) / 2) * noise;
}

void check(const Drawing& drawing, const models::DenoiserSizes& sizes) {
  const size_t count = drawing.classes.size();
  require(count > 0 && drawing.seeds.size() == count, "draw", "each picture must have a class and a seed: got ", count,
          " classes and ", drawing.seeds.size(), " seeds");
  for (const int64_t one : drawing.classes)
    require(one >= 0 && one <= sizes.classes, "draw", "classes must be in [0, ", sizes.classes, "): got ", one);
  const std::array<int64_t, 4> wanted{static_cast<int64_t>(count), sizes.channels, sizes.height, sizes.width};
  require(!drawing.start.defined() || drawing.start.sizes() == at::IntArrayRef(wanted), "draw",
          "the starting noise must have the sizes ", at::IntArrayRef(wanted), ": got ",
          drawing.start.defined() ? drawing.start.sizes() : at::IntArrayRef());
}

}  // namespace

at::Tensor draw(distributed::DistributedModel& model, const noise::SamplerPlan& plan, const Drawing& drawing) {
  const at::NoGradGuard no_grad;
  const Predictor predictor(model, drawing);
  const models::DenoiserSizes& sizes = predictor.sizes();
  check(drawing, sizes);
  const at::ScalarType dtype = predictor.dtype();
  const auto fresh = [&](uint64_t step) { return fresh_noise(drawing.seeds, sizes, step, dtype); };
  Parts parts;
  parts.sample = plan.start_scale * (drawing.start.defined() ? drawing.start.to(at::kCPU, dtype) : fresh(0));
  parts.base = parts.sample;
  uint64_t number = 0;
  for (const noise::SamplerStep& step : plan.steps) {
    ++number;
    const at::Tensor predicted = predictor.predict(step.input_scale * parts.sample, step.time);
    parts.output = predicted.narrow(1, 0, sizes.channels);
    at::Tensor estimate = step.estimate.sample * parts.sample + step.estimate.output * parts.output;
    if (step.clip > 0) estimate = estimate.clamp(-step.clip, step.clip);
    parts.estimates.push_front(std::move(estimate));
    if (step.next.noise != 0 || step.learned) parts.noise = fresh(number);
    at::Tensor next = combined(step.next, parts);
    if (step.learned)
      next += with_variance(parts.noise, predicted.narrow(1, sizes.channels, sizes.channels), *step.learned);
    if (step.next_base) parts.base = combined(*step.next_base, parts);
    parts.sample = std::move(next);
    if (!step.keeps_estimate) parts.estimates.pop_front();
    while (parts.estimates.size() > plan.history) parts.estimates.pop_back();
  }
  return parts.sample;
}

data::Picture picture_of(const at::Tensor& pixels) {
  require(pixels.dim() == 3 && pixels.size(0) == 3, "draw", "pixels must be [3, height, width]: got ", pixels.sizes());
  const at::Tensor bytes = ((pixels.to(at::kCPU, at::kDouble).clamp(-1, 1) + 1) * 127.5)
                               .round()
                               .to(at::kByte)
                               .permute({1, 2, 0})
                               .contiguous();
  const auto* first = bytes.const_data_ptr<uint8_t>();
  return {.width = pixels.size(2), .height = pixels.size(1), .rgb = {first, first + bytes.numel()}};
}

}  // namespace colossal::diffusion

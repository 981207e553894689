#include "support/noised_pictures.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/seed.h"
#include "colossal/models/denoiser.h"
#include "support/parity.h"

namespace colossal::test {
namespace {

constexpr int64_t kMostWords = 5;  // of a caption

at::Tensor random(const std::vector<int64_t>& sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

class Prediction : public run::Objective {
 public:
  explicit Prediction(models::ModelShape shape) : shape_(std::move(shape)) {}
  run::OpenedData open(const run::DataRequest&) const override { return {}; }
  tensor::Batch example(int64_t rows) const override {
    return noised_pictures(shape_, rows, 1).map([](const tensor::Field& f) { return f.tensor.to(at::kMeta); });
  }
  void check(const tensor::Batch& batch) const override { batch.at("targets"); }
  double weight(const tensor::Batch& batch) const override { return static_cast<double>(batch.rows()); }
  at::Tensor loss(const models::Model&, const models::States& end, const nn::ForwardContext& step) const override {
    const at::Tensor predicted = models::predicted_picture(shape_, end.at(0));
    return (predicted - step.batch->at("targets").to(predicted.scalar_type())).square().sum();
  }

 private:
  models::ModelShape shape_;
};

}  // namespace

tensor::Batch noised_pictures(const models::ModelShape& shape, int64_t rows, int64_t seed) {
  using tensor::Dim;
  const models::DenoiserSizes own = models::denoiser_of(shape);
  const bool is_clip = own.frames > 0;
  std::vector<Dim> picture(is_clip ? 5 : 4, Dim::Other);
  picture.front() = Dim::Row;
  const auto sizes = [&](int64_t channels) -> std::vector<int64_t> {
    if (is_clip) return {rows, channels, own.frames, own.height, own.width};
    return {rows, channels, own.height, own.width};
  };
  const at::Tensor index = at::arange(rows, at::TensorOptions(at::kLong));
  tensor::Batch batch;
  batch.add("noised", {random(sizes(own.channels + own.beside), 100 + seed), picture});
  batch.add("targets", {random(sizes(own.outputs), 200 + seed), picture});
  batch.add("times", {index.to(at::kDouble) * 37.5 + static_cast<double>(seed), {Dim::Row}});
  if (own.classes > 0) batch.add("classes", {(own.classes - index + seed).remainder(own.classes + 1), {Dim::Row}});
  if (own.text > 0)
    batch.add("text", {random({rows, std::min(kMostWords, own.text_tokens), own.text}, 300 + seed),
                       {Dim::Row, Dim::Other, Dim::Feature}});
  if (own.pooled > 0) batch.add("pooled", {random({rows, own.pooled}, 400 + seed), {Dim::Row, Dim::Other}});
  if (own.sizes > 0) batch.add("sizes", {random({rows, own.sizes}, 500 + seed) * 50, {Dim::Row, Dim::Other}});
  if (own.told_guidance) batch.add("guidance", {index.to(at::kDouble) * 0.01 + 0.5, {Dim::Row}});
  if (own.reads_rate) batch.add("fps", {index.to(at::kDouble) * 4 + 8, {Dim::Row}});
  if (is_clip)
    batch.add("given", {at::arange(own.frames).eq(index.unsqueeze(1)).to(at::kLong), {Dim::Row, Dim::Other}});
  if (own.noises_given) batch.add("shown", {random(sizes(own.channels), 600 + seed), picture});
  if (!own.masks_text) return batch;
  const int64_t tokens = batch.at("text").size(1);
  const at::Tensor words = index.remainder(tokens - 2) + 2;  // the other tokens of the captions are pads
  batch.add("text_mask", {at::arange(tokens).lt(words.unsqueeze(1)).to(at::kLong), {Dim::Row, Dim::Other}});
  batch.add("untold", {index.eq(1).to(at::kLong), {Dim::Row}});
  return batch;
}

std::shared_ptr<const run::Objective> prediction_objective(const models::ModelShape& shape) {
  return std::make_shared<Prediction>(shape);
}

void set_random_weights(train::Engine& engine) {
  for (const checkpoint::NamedTensor& weight : engine.weights()) {
    const at::Tensor whole = random(weight.spec.shape, derive_seed(7, weight.name)) * 0.2;
    const tensor::Held held = weight.value.write();
    held.value.detach().copy_(local_part(whole, weight, engine.mesh().coordinates()).view(held.value.sizes()));
  }
  engine.weights_loaded();
}

}  // namespace colossal::test

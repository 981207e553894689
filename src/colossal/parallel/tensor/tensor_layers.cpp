#include "colossal/parallel/tensor/tensor_layers.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/experts.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/latent_heads.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/nn/tokens.h"
#include "colossal/ops/norm.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/parallel/expert/ranks.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/linear.h"
#include "colossal/parallel/tensor/modulation.h"
#include "colossal/parallel/tensor/primitives.h"
#include "colossal/parallel/tensor/table.h"
#include "colossal/parallel/tensor/vocabulary.h"

namespace colossal::parallel {
namespace {

using nn::Init;
using LayoutPtr = std::shared_ptr<const Layout>;

struct TensorExpand : nn::Expand {
  explicit TensorExpand(std::unique_ptr<TensorLinear> linear) : linear(std::move(linear)) {}
  nn::Inside forward(const at::Tensor& x) override { return {linear->forward(x)}; }
  nn::Inside forward_taps(const std::vector<at::Tensor>& x) override { return {linear->forward_taps(x)}; }
  nn::Inside forward(const at::Tensor& x, const nn::Pictures& pictures) override {
    return {linear->forward(x, pictures)};
  }
  std::unique_ptr<TensorLinear> linear;
};

struct TensorContract : nn::Contract {
  explicit TensorContract(std::unique_ptr<TensorLinear> linear) : linear(std::move(linear)) {}
  at::Tensor forward(const nn::Inside& x) override { return linear->forward(x.tensor, x.pending); }
  at::Tensor forward_taps(const std::vector<nn::Inside>& x) override { return linear->forward_taps(nn::tensors_of(x)); }
  at::Tensor forward(const nn::Inside& x, const nn::Pictures& pictures) override {
    return linear->forward(x.tensor, pictures, x.pending);
  }
  std::unique_ptr<TensorLinear> linear;
};

/// Projects the output of attention. It is in the order of the sequence, so it is first reordered rank by rank.
struct TensorOutput : nn::OutputProjection {
  TensorOutput(std::unique_ptr<TensorLinear> linear, const Layout& layout)
      : linear(std::move(linear)), order(SequenceOrder::inside(layout)) {}
  at::Tensor forward(const nn::Inside& x, const nn::ForwardContext& step) override {
    return linear->forward(order.by_rank(x.tensor, step), x.pending);
  }
  at::Tensor forward(const nn::Inside& x, const nn::Inside& beside, const nn::ForwardContext& step) override {
    const nn::Inside both = nn::side_by_side({order.by_rank(x.tensor, step), x.pending}, beside);
    return linear->forward(both.tensor, both.pending);
  }
  std::unique_ptr<TensorLinear> linear;
  SequenceOrder order;
};

/// A table whose columns are split like heads.
struct TensorHeadTable : nn::HeadTable {
  TensorHeadTable(nn::Parameters& p, const Layout& layout, const std::string& name, int64_t rows, int64_t heads,
                  double deviation)
      : table(p, layout, name + ".weight", {rows, heads}, layout.inside,
              {.features = 1, .segments = {{heads, 1}}, .init = Init::normal(deviation), .decay = true}) {
    table.parameter().is_shared = true;
  }
  at::Tensor forward() override { return table.value(); }
  Table table;
};

/// Every rank holds the whole weight and applies it to its own heads of its own tokens.
struct TensorHeadNorm : nn::Norm {
  TensorHeadNorm(nn::Parameters& p, const Layout& layout, const std::string& name, int64_t head_dim,
                 const nn::NormOptions& o)
      : weight(p.add(name + ".weight", spec_of(layout, head_dim), o.init(), false)), options(o) {}
  static tensor::ShardSpec spec_of(const Layout& layout, int64_t head_dim) {
    tensor::ShardSpec spec = tensor::ShardSpec::whole({head_dim});
    for (const auto* axes : {&layout.inside.batch, &layout.inside.sequence, &layout.inside.columns})
      spec.gradient_axes.insert(spec.gradient_axes.end(), axes->begin(), axes->end());
    return spec;
  }
  at::Tensor forward(const at::Tensor& x) override {
    return ops::rms_norm(x, weight.value, options.epsilon, options.offset());
  }
  nn::Parameter& weight;
  nn::NormOptions options;
};

/// Returns the axes along which ranks have different rows or tokens between blocks.
std::vector<std::string> split_axes(const Split& outside) {
  std::vector<std::string> axes = outside.batch;
  axes.insert(axes.end(), outside.sequence.begin(), outside.sequence.end());
  return axes;
}

}  // namespace

TensorLayers::TensorLayers(nn::Parameters& parameters, Layout layout)
    : Layers(parameters, split_axes(layout.outside)), layout_(std::make_shared<const Layout>(std::move(layout))) {}

nn::FieldPart TensorLayers::field_part() const {
  return [layout = layout_](const tensor::Field& field, const nn::ForwardContext& step) {
    return part_of(*layout, layout->outside, field, step);
  };
}

int64_t TensorLayers::batch_parts() const { return layout_->mesh->coordinates().size(layout_->outside.batch); }

bool TensorLayers::splits_tokens() const { return !layout_->outside.sequence.empty(); }

std::unique_ptr<nn::Expand> TensorLayers::expand(const std::string& name, int64_t in, int64_t out,
                                                 const nn::LinearOptions& o) {
  return std::make_unique<TensorExpand>(TensorLinear::expand(parameters(), layout_, name, in, out, o));
}

std::unique_ptr<nn::Contract> TensorLayers::contract(const std::string& name, int64_t in, int64_t out,
                                                     const nn::LinearOptions& o) {
  return std::make_unique<TensorContract>(TensorLinear::contract(parameters(), layout_, name, in, out, o));
}

std::unique_ptr<nn::HeadProjection> TensorLayers::heads(const std::string& name, const nn::AttentionShape& s,
                                                        const nn::LinearOptions& o) {
  return std::make_unique<TensorHeads>(parameters(), layout_, name, s, o);
}

std::unique_ptr<nn::HeadProjection> TensorLayers::latent_heads(const std::string& name, const nn::AttentionShape& s,
                                                               const nn::LatentOptions& o) {
  nn::check_latents(name, s, o);
  return nn::make_latent_heads(*this, name, s, o, std::make_unique<TensorLatents>(parameters(), layout_, name, s, o));
}

std::unique_ptr<nn::CrossProjection> TensorLayers::cross_heads(const std::string& name, const nn::AttentionShape& s,
                                                               const nn::LinearOptions& q,
                                                               const nn::LinearOptions& kv) {
  nn::check_cross_heads(name, s);
  return std::make_unique<TensorCrossHeads>(parameters(), layout_, name, s, q, kv);
}

std::unique_ptr<nn::HeadTable> TensorLayers::head_table(const std::string& name, int64_t rows, int64_t heads,
                                                        double deviation) {
  return std::make_unique<TensorHeadTable>(parameters(), *layout_, name, rows, heads, deviation);
}

std::unique_ptr<nn::Attention> TensorLayers::make_attention(int64_t layer, const nn::AttentionShape& s,
                                                            const nn::AttentionOptions& o) {
  return layout_->attention ? layout_->attention(layer, s, o) : Layers::make_attention(layer, s, o);
}

std::unique_ptr<nn::OutputProjection> TensorLayers::from_heads(const std::string& name, const nn::AttentionShape& s,
                                                               const nn::LinearOptions& o) {
  nn::LinearOptions options = o;
  const nn::HeadSplit split(s.of_values(), layout_->mesh->coordinates().size(layout_->inside.columns));
  options.segments.insert(options.segments.begin(), split.q);
  return std::make_unique<TensorOutput>(
      TensorLinear::contract(parameters(), layout_, name, tensor::total_size(options.segments), s.hidden, options),
      *layout_);
}

std::unique_ptr<nn::Experts> TensorLayers::experts(const std::string& name, int64_t hidden,
                                                   const nn::ExpertOptions& o) {
  return nn::make_experts(parameters(), reports(), name, hidden, o, std::make_shared<const MeshExpertRanks>(layout_));
}

std::unique_ptr<nn::Embedding> TensorLayers::embedding(const std::string& name, int64_t vocabulary, int64_t hidden,
                                                       double deviation) {
  return std::make_unique<VocabularyEmbedding>(parameters(), layout_, name, vocabulary, hidden, deviation);
}

std::unique_ptr<nn::Norm> TensorLayers::head_norm(const std::string& name, int64_t head_dim, const nn::NormOptions& o) {
  return std::make_unique<TensorHeadNorm>(parameters(), *layout_, name, head_dim, o);
}

std::unique_ptr<nn::Dense> TensorLayers::dense(const std::string& name, int64_t in, int64_t out,
                                               const nn::LinearOptions& o) {
  return std::make_unique<TensorDense>(parameters(), layout_, name, in, out, o);
}

std::unique_ptr<nn::LossHead> TensorLayers::lm_head(const std::string& name, int64_t hidden, int64_t vocabulary,
                                                    const nn::LmHeadOptions& o) {
  return std::make_unique<VocabularyLossHead>(parameters(), layout_, name, hidden, vocabulary, o);
}

std::unique_ptr<nn::LossHead> TensorLayers::classifier(const std::string& name, int64_t hidden, int64_t classes,
                                                       double deviation) {
  return std::make_unique<TensorClassifier>(parameters(), layout_, name, hidden, classes, deviation);
}

std::unique_ptr<nn::Vector> TensorLayers::vector(const std::string& name, std::vector<int64_t> shape,
                                                 const nn::VectorOptions& o) {
  return std::make_unique<TensorVector>(parameters(), *layout_, name, std::move(shape), o);
}

std::shared_ptr<const nn::Features> TensorLayers::features(int64_t size, nn::Place place) {
  return std::make_shared<const TensorFeatures>(*layout_, size, place);
}

std::shared_ptr<const nn::TokenRuns> TensorLayers::token_runs() {
  return std::make_shared<const TensorTokenRuns>(layout_);
}

std::shared_ptr<const nn::AxisSwitch> TensorLayers::axis_switch() const {
  return layout_->axis_switch ? layout_->axis_switch : Layers::axis_switch();
}

std::shared_ptr<const nn::AxialRanks> TensorLayers::axial_ranks() const {
  return layout_->axial_ranks ? layout_->axial_ranks : Layers::axial_ranks();
}

nn::OwnTokens TensorLayers::own_tokens() const {
  return [layout = layout_](const nn::ForwardContext& step) { return tokens_of(*layout, layout->outside, step); };
}

nn::OwnTokens TensorLayers::inside_tokens() const {
  return [layout = layout_](const nn::ForwardContext& step) { return tokens_of(*layout, layout->inside, step); };
}

std::unique_ptr<nn::Modulation> TensorLayers::modulation(const std::string& name, int64_t hidden, int64_t count) {
  require(count > 0, "model", "the vectors of a modulation must be 1 or more: got ", count, " for ", name);
  return std::make_unique<TensorModulation>(parameters(), layout_, name, hidden, count);
}

std::unique_ptr<nn::Outputs> TensorLayers::outputs(const std::string& name, int64_t hidden, int64_t out,
                                                   const nn::LinearOptions& o) {
  require(out > 0, "model", "outputs must be 1 or more: got ", out, " for ", name);
  // Makes the groups now, because making a group during a step would wait for ranks that still compute.
  for (const auto& axes : {layout_->outside.columns, layout_->outside.sequence, layout_->outside.batch})
    layout_->mesh->group(axes);
  return std::make_unique<TensorOutputs>(parameters(), layout_, name, hidden, out, o);
}

}  // namespace colossal::parallel

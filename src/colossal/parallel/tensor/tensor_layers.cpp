#include "colossal/parallel/tensor/tensor_layers.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/dropout.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/experts.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/latent_heads.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/lookup.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/nn/patches.h"
#include "colossal/nn/tokens.h"
#include "colossal/ops/norm.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/ops/random.h"
#include "colossal/parallel/expert/ranks.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/dense.h"
#include "colossal/parallel/tensor/latents.h"
#include "colossal/parallel/tensor/linear.h"
#include "colossal/parallel/tensor/outputs.h"
#include "colossal/parallel/tensor/table.h"
#include "colossal/parallel/tensor/vocabulary.h"

namespace colossal::parallel {
namespace {

using nn::Init;
using LayoutPtr = std::shared_ptr<const Layout>;

struct TensorExpand : nn::Expand {
  explicit TensorExpand(std::unique_ptr<TensorLinear> linear) : linear(std::move(linear)) {}
  nn::Inside forward(const at::Tensor& x) override { return {linear->forward(x)}; }
  std::unique_ptr<TensorLinear> linear;
};

struct TensorContract : nn::Contract {
  explicit TensorContract(std::unique_ptr<TensorLinear> linear) : linear(std::move(linear)) {}
  at::Tensor forward(const nn::Inside& x) override { return linear->forward(x.tensor, x.pending); }
  std::unique_ptr<TensorLinear> linear;
};

/// Projects the output of attention. It is in the order of the sequence, so it is first reordered rank by rank.
struct TensorOutput : nn::OutputProjection {
  TensorOutput(std::unique_ptr<TensorLinear> linear, const Layout& layout)
      : linear(std::move(linear)), order(SequenceOrder::inside(layout)) {}
  at::Tensor forward(const nn::Inside& x, const nn::ForwardContext& step) override {
    return linear->forward(order.by_rank(x.tensor, step), x.pending);
  }
  std::unique_ptr<TensorLinear> linear;
  SequenceOrder order;
};

struct TableEmbedding : nn::Embedding {
  TableEmbedding(nn::Parameters& p, LayoutPtr of, const std::string& name, int64_t length, int64_t hidden,
                 double deviation)
      : layout(std::move(of)),
        table(p, *layout, name + ".weight", {length, hidden}, layout->outside,
              {.features = 1, .init = Init::normal(deviation), .decay = true}) {}
  at::Tensor forward(const at::Tensor& ids, const nn::ForwardContext& step) override {
    return nn::lookup(table.value(), tokens_of(*layout, layout->outside, step).of(ids));
  }
  nn::Parameter& weight() override { return table.parameter(); }
  LayoutPtr layout;
  Table table;
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

struct TensorPatchEmbedding : nn::PatchEmbedding {
  TensorPatchEmbedding(nn::Parameters& p, LayoutPtr of, const std::string& name, const nn::PatchShape& s,
                       int64_t hidden, double deviation, const std::string& class_token, double class_deviation)
      : layout(std::move(of)),
        shape(s),
        weight(p, *layout, name + ".weight", {hidden, s.channels, s.patch, s.patch}, layout->outside,
               {.init = Init::normal(deviation), .decay = true}),
        bias(p, *layout, name + ".bias", {hidden}, layout->outside, {}),
        first(p, *layout, class_token + ".weight", {s.class_tokens, hidden}, layout->outside,
              {.features = 1, .init = Init::normal(class_deviation), .decay = true}) {}
  at::Tensor forward(const at::Tensor& images, const nn::ForwardContext& step) override {
    const nn::Tokens tokens = tokens_of(*layout, layout->outside, step);
    const at::Tensor patches = nn::cut_patches(tokens.rows_of(images), shape), w = weight.value().flatten(1),
                     b = bias.value(), class_tokens = first.value();
    if (tokens.sequence.is_all())
      return at::cat({class_tokens.expand({patches.size(0), -1, -1}), nn::linear(patches, w, b)}, 1);
    // A rank uses all parameters, whatever tokens it has, because ranks that share them wait for its gradients.
    const int64_t in_front = class_tokens.size(0);
    const auto own = [&](const at::Tensor& all) { return tokens.sequence.of(all, 1, "sequence"); };
    const at::Tensor behind = own(at::constant_pad_nd(patches, {0, 0, in_front, 0}));
    const at::Tensor before = own(at::constant_pad_nd(class_tokens, {0, 0, 0, patches.size(1)}).unsqueeze(0));
    at::Tensor is_patch = at::ones({1, in_front + patches.size(1), 1}, behind.options());
    is_patch.narrow(1, 0, in_front).zero_();
    return nn::linear(behind, w, b) * own(is_patch) + before;
  }
  LayoutPtr layout;
  nn::PatchShape shape;
  Table weight, bias, first;
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

struct TensorNorm : nn::Norm {
  TensorNorm(nn::Parameters& p, const Layout& layout, const std::string& name, int64_t hidden, const nn::NormOptions& o,
             bool centred)
      : weight(p, layout, name + ".weight", {hidden}, layout.outside, {.init = o.init()}),
        hidden(hidden),
        options(o),
        centred(centred),
        features(layout.mesh->group(layout.outside.columns)),
        is_split(features.size() > 1),
        reduction(features) {
    if (centred && o.bias)
      bias.emplace(p, layout, name + ".bias", std::vector<int64_t>{hidden}, layout.outside, Table::Options{});
  }
  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor w = weight.value();
    const double epsilon = options.epsilon, offset = options.offset();
    if (!centred)
      return is_split ? ops::split_rms_norm(x, w, epsilon, hidden, reduction, offset)
                      : ops::rms_norm(x, w, epsilon, offset);
    const at::Tensor b = bias ? bias->value() : at::Tensor();
    return is_split ? ops::split_layer_norm(x, w, b, epsilon, hidden, reduction, offset)
                    : ops::layer_norm(x, w, b, epsilon, offset);
  }
  Table weight;
  std::optional<Table> bias;
  int64_t hidden;
  nn::NormOptions options;
  bool centred;
  comm::Group& features;
  bool is_split;
  GroupReduction reduction;
};

struct TensorDropout : nn::Dropout {
  TensorDropout(LayoutPtr of, uint64_t site, int64_t hidden, double probability)
      : layout(std::move(of)),
        site(site),
        hidden(hidden),
        probability(probability),
        column(layout->mesh->coordinates().index(layout->outside.columns)) {}
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) override {
    if (!step.training || probability == 0) return x;
    nn::Tokens tokens = tokens_of(*layout, layout->outside, step);
    if (step.parts.find<nn::ClassTokens>()) tokens.sequence = {};
    const int64_t sequence = tokens.sequence.whole_size(x.size(1));
    const int64_t first_row = step.first_row + tokens.batch.held.front() * x.size(0);
    const auto dropped = [&](const at::Tensor& run, const nn::Range& range) {
      return ops::dropout(run, probability, derive_seed(step.dropout_seed, site),
                          {first_row * sequence + range.first, range.size, sequence}, column * x.size(-1), hidden);
    };
    const auto ranges = tokens.sequence.ranges(sequence, "sequence");
    if (ranges.size() == 1) return dropped(x, ranges.front());
    std::vector<at::Tensor> runs;
    int64_t own = 0;  // index in x of the first token of a range
    for (const nn::Range& range : ranges) {
      runs.push_back(dropped(x.narrow(1, own, range.size), range));
      own += range.size;
    }
    return at::cat(runs, 1);
  }
  LayoutPtr layout;
  uint64_t site;
  int64_t hidden;
  double probability;
  int64_t column;
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
  return nn::make_latent_heads(*this, name, s, o,
                               std::make_unique<TensorLatents>(parameters(), layout_, name, s, o));
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
  options.segments = {nn::HeadSplit(s.of_values(), layout_->mesh->coordinates().size(layout_->inside.columns)).q};
  return std::make_unique<TensorOutput>(
      TensorLinear::contract(parameters(), layout_, name, s.heads * s.value_dim(), s.hidden, options), *layout_);
}

std::unique_ptr<nn::Experts> TensorLayers::experts(const std::string& name, int64_t hidden,
                                                   const nn::ExpertOptions& o) {
  return nn::make_experts(parameters(), reports(), name, hidden, o, std::make_shared<const MeshExpertRanks>(layout_));
}

std::unique_ptr<nn::Embedding> TensorLayers::embedding(const std::string& name, int64_t vocabulary, int64_t hidden,
                                                       double deviation) {
  return std::make_unique<VocabularyEmbedding>(parameters(), layout_, name, vocabulary, hidden, deviation);
}

std::unique_ptr<nn::Embedding> TensorLayers::positions(const std::string& name, int64_t length, int64_t hidden,
                                                       double deviation) {
  return std::make_unique<TableEmbedding>(parameters(), layout_, name, length, hidden, deviation);
}

std::unique_ptr<nn::PatchEmbedding> TensorLayers::patch_embedding(const std::string& name, const nn::PatchShape& s,
                                                                  int64_t hidden, double deviation,
                                                                  const std::string& class_token,
                                                                  double class_deviation) {
  return std::make_unique<TensorPatchEmbedding>(parameters(), layout_, name, s, hidden, deviation, class_token,
                                                class_deviation);
}

std::unique_ptr<nn::Norm> TensorLayers::rms_norm(const std::string& name, int64_t hidden, const nn::NormOptions& o) {
  return std::make_unique<TensorNorm>(parameters(), *layout_, name, hidden, o, false);
}

std::unique_ptr<nn::Norm> TensorLayers::head_norm(const std::string& name, int64_t head_dim, const nn::NormOptions& o) {
  return std::make_unique<TensorHeadNorm>(parameters(), *layout_, name, head_dim, o);
}

std::unique_ptr<nn::Norm> TensorLayers::layer_norm(const std::string& name, int64_t hidden, const nn::NormOptions& o) {
  return std::make_unique<TensorNorm>(parameters(), *layout_, name, hidden, o, true);
}

std::unique_ptr<nn::Dropout> TensorLayers::dropout(const std::string& name, int64_t hidden, double probability) {
  require(probability >= 0 && probability < 1, "model", "dropout must be in [0, 1): got ", probability, " for ", name);
  return std::make_unique<TensorDropout>(layout_, derive_seed(0, name), hidden, probability);
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

std::unique_ptr<nn::Outputs> TensorLayers::outputs(const std::string& name, int64_t hidden, int64_t out,
                                                   const nn::LinearOptions& o) {
  require(out > 0, "model", "outputs must be 1 or more: got ", out, " for ", name);
  // Makes the groups now, because making a group during a step would wait for ranks that still compute.
  for (const auto& axes : {layout_->outside.columns, layout_->outside.sequence, layout_->outside.batch})
    layout_->mesh->group(axes);
  return std::make_unique<TensorOutputs>(parameters(), layout_, name, hidden, out, o);
}

}  // namespace colossal::parallel

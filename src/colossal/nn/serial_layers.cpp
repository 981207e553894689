#include "colossal/nn/serial_layers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/convolution.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/expert_ranks.h"
#include "colossal/nn/experts.h"
#include "colossal/nn/features.h"
#include "colossal/nn/few_outputs.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/latent_heads.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/modulation.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/nn/recompute.h"
#include "colossal/nn/token_runs.h"
#include "colossal/nn/vector.h"
#include "colossal/ops/cross_entropy.h"
#include "colossal/ops/linear_token_scores.h"
#include "colossal/ops/norm.h"
#include "colossal/ops/soft_cap.h"

namespace colossal::nn {
namespace {

using tensor::ShardSpec;

/// Sets the segments of a fused weight's rows. Nothing is split here, but import and export split the weight at these
/// borders.
LinearOptions with_segments(LinearOptions options, std::vector<tensor::Segment> segments) {
  options.segments = std::move(segments);
  return options;
}

struct SerialLinear {
  SerialLinear(Parameters& p, const std::string& name, int64_t in, int64_t out, const LinearOptions& options)
      : weight(p.add(name + ".weight", ShardSpec::split(options.weight_sizes(out, in), 0, {}, options.segments),
                     Init::normal(options.deviation), true)),
        bias(options.bias
                 ? &p.add(name + ".bias", ShardSpec::split({out}, 0, {}, options.segments), Init::zeros(), false)
                 : nullptr),
        deferred(p.deferred()) {}
  at::Tensor forward(const at::Tensor& x, const Unary& before = {}) const {
    const at::Tensor own = bias ? bias->value : at::Tensor();
    if (!weight.value.is_floating_point())  // codes (nn/frozen_form.h), which have other sizes
      return nn::linear(*product, x, weight.value, own, weight.spec.shape[0], &deferred, before);
    return nn::linear(x, weight.value, own, &deferred, before, *product);
  }
  at::Tensor forward(const at::Tensor& x, const Pictures& pictures, const Unary& before = {}) const {
    return convolved(*product, x, weight.value, bias ? bias->value : at::Tensor(), weight.spec.shape[0], pictures,
                     before);
  }
  at::Tensor forward_taps(const std::vector<at::Tensor>& x) const {
    require(product->parameters().empty(), "adapter", "a sum of taps must be of a layer without adapters: got one of ",
            weight.name, "; name adapter.targets without it");
    return sum_of_taps(
        x, weight.value, bias ? bias->value : at::Tensor(),
        [](const at::Tensor& own, const at::Tensor& w, const at::Tensor& b) { return nn::linear(own, w, b); });
  }
  Parameter& weight;
  Parameter* bias;
  DeferredGradients& deferred;
  std::shared_ptr<const Product> product{std::shared_ptr<void>(), &serial_product()};  // static: never deleted
};

struct BlockLinear : SerialLinear {
  BlockLinear(Parameters& p, const std::string& name, int64_t in, int64_t out, const LinearOptions& o)
      : SerialLinear(p, name, in, out, o) {
    weight.hidden_matrix = o.taps.empty();
    product = p.product_for(weight, product);
  }
};

struct SerialExpand : Expand {
  SerialExpand(Parameters& p, const std::string& name, int64_t in, int64_t out, const LinearOptions& o)
      : linear(p, name, in, out, o) {}
  Inside forward(const at::Tensor& x) override { return {linear.forward(x)}; }
  Inside forward_taps(const std::vector<at::Tensor>& x) override { return {linear.forward_taps(x)}; }
  Inside forward(const at::Tensor& x, const Pictures& pictures) override { return {linear.forward(x, pictures)}; }
  BlockLinear linear;
};

struct SerialContract : Contract {
  SerialContract(Parameters& p, const std::string& name, int64_t in, int64_t out, const LinearOptions& o)
      : linear(p, name, in, out, o) {}
  at::Tensor forward(const Inside& x) override { return linear.forward(x.tensor, x.pending); }
  at::Tensor forward_taps(const std::vector<Inside>& x) override { return linear.forward_taps(tensors_of(x)); }
  at::Tensor forward(const Inside& x, const Pictures& pictures) override {
    return linear.forward(x.tensor, pictures, x.pending);
  }
  BlockLinear linear;
};

struct SerialOutput : OutputProjection {
  SerialOutput(Parameters& p, const std::string& name, int64_t in, int64_t out, const LinearOptions& o)
      : linear(p, name, in, out, o) {}
  at::Tensor forward(const Inside& x, const ForwardContext&) override { return linear.forward(x.tensor, x.pending); }
  at::Tensor forward(const Inside& x, const Inside& beside, const ForwardContext& step) override {
    return forward(side_by_side(x, beside), step);
  }
  BlockLinear linear;
};

struct SerialHeads : HeadProjection {
  SerialHeads(Parameters& p, const std::string& name, const AttentionShape& s, const LinearOptions& options)
      : shape(s),
        fused(p, name, s.hidden, (s.heads + 2 * s.kv_heads) * s.head_dim,
              with_segments(options, HeadSplit(s, 1).fused())) {}
  Heads forward(const at::Tensor& x, const ForwardContext&) override {
    return split_heads(fused.forward(x), shape.heads, shape.kv_heads, shape.head_dim);
  }
  AttentionShape shape;
  BlockLinear fused;
};

struct SerialCross : CrossProjection {
  SerialCross(Parameters& p, const std::string& name, const AttentionShape& s, const LinearOptions& q,
              const LinearOptions& kv)
      : shape(s),
        q(p, name + ".q", s.hidden, s.heads * s.head_dim, with_segments(q, {HeadSplit(s, 1).q})),
        kv(p, name + ".kv", s.source(), 2 * s.heads * s.head_dim,
           with_segments(kv, {HeadSplit(s, 1).kv, HeadSplit(s, 1).kv})) {}
  Heads forward(const at::Tensor& x, const at::Tensor& source, const ForwardContext&) override {
    return cross_heads_of(q.forward(x), source.size(1) > 0 ? kv.forward(source) : at::Tensor(), shape.head_dim);
  }
  AttentionShape shape;
  BlockLinear q, kv;
};

struct SerialLatents : LatentLinears {
  SerialLatents(Parameters& p, const std::string& name, const AttentionShape& s, const LatentOptions& o)
      : LatentLinears(LatentSplit(s, o, 1)),
        down_linear(p, name + ".latent", s.hidden, split.down_size(),
                    {.bias = false, .deviation = o.deviation, .segments = split.down}),
        kv_linear(p, name + ".kv_up", o.kv_rank, split.kv_up.size,
                  {.bias = false, .deviation = o.deviation, .segments = {split.kv_up}}) {
    kv_linear.weight.looked_up = true;  // kv_weight() reads it, also if its product packs it
    if (o.q_rank > 0)
      q_linear.emplace(p, name + ".q_up", o.q_rank, split.q.size,
                       LinearOptions{.bias = false, .deviation = o.deviation, .segments = {split.q}});
  }
  at::Tensor down(const at::Tensor& x, const ForwardContext&) override { return down_linear.forward(x); }
  at::Tensor q_up(const at::Tensor& x) override { return q_linear->forward(x); }
  at::Tensor kv_up(const at::Tensor& x) override { return kv_linear.forward(x); }
  at::Tensor kv_weight() const override {
    return kv_linear.product->parameters().empty() ? kv_linear.weight.value : at::Tensor();
  }
  void place(Heads&, const ForwardContext&) const override {}
  BlockLinear down_linear, kv_linear;
  std::optional<BlockLinear> q_linear;
};

struct SerialHeadTable : HeadTable {
  SerialHeadTable(Parameters& p, const std::string& name, int64_t rows, int64_t heads, double deviation)
      : table(p.add(name + ".weight", ShardSpec::whole({rows, heads}), Init::normal(deviation), true)) {
    table.is_shared = true;
  }
  at::Tensor forward() override { return table.value; }
  Parameter& table;
};

struct SerialEmbedding : Embedding {
  SerialEmbedding(Parameters& p, const std::string& name, int64_t rows, int64_t hidden, double deviation)
      : table(p.add(name + ".weight", ShardSpec::whole({rows, hidden}), Init::normal(deviation), true)) {}
  at::Tensor forward(const at::Tensor& ids, const ForwardContext&) override { return lookup(table.value, ids); }
  Parameter& weight() override { return table; }
  Parameter& table;
};

struct HeadNorm : Norm {
  HeadNorm(Parameters& p, const std::string& name, int64_t hidden, const NormOptions& o)
      : weight(p.add(name + ".weight", ShardSpec::whole({hidden}), o.init(), false)), options(o) {}
  at::Tensor forward(const at::Tensor& x) override {
    return ops::rms_norm(x, weight.value, options.epsilon, options.offset());
  }
  Parameter& weight;
  NormOptions options;
};

struct SerialVector : Vector {
  SerialVector(Parameters& p, const std::string& name, std::vector<int64_t> shape, const VectorOptions& o)
      : values(p.add(name, ShardSpec::split(std::move(shape), o.features, {}, o.segments), o.init, o.decay)) {}
  at::Tensor value() const override { return values.value; }
  Parameter& parameter() const override { return values; }
  Parameter& values;
};

struct SerialDense : Dense {
  SerialDense(Parameters& p, const std::string& name, int64_t in, int64_t out, const LinearOptions& o)
      : linear(p, name, in, out, o) {
    linear.product = p.product_between_blocks(linear.weight);
  }
  at::Tensor forward(const at::Tensor& x) override { return linear.forward(x); }
  at::Tensor forward(const at::Tensor& x, const Pictures& pictures) override { return linear.forward(x, pictures); }
  SerialLinear linear;
};

struct SerialLossHead : LossHead {
  SerialLossHead(Parameter& weight, Parameter* bias, double soft_cap)
      : weight(weight), bias(bias), soft_cap(soft_cap) {}
  at::Tensor loss_sum(const at::Tensor& hidden, const at::Tensor& labels, const ForwardContext&) override {
    return ops::linear_cross_entropy(hidden.reshape({-1, hidden.size(-1)}), weight.value, labels.reshape({-1}), {},
                                     nullptr, 0, nullptr, bias_value(), soft_cap);
  }
  at::Tensor found(const at::Tensor& hidden, const at::Tensor& labels, const ForwardContext&) override {
    // Logits are compared without the soft cap. A cap keeps their order, but rounds large ones to the same value.
    const at::Tensor tokens = hidden.flatten(0, -2), answers = labels.flatten();
    const int64_t slice = ops::slice_tokens(tokens.size(0), weight.value.size(0), tokens.device());
    at::Tensor count = at::zeros({}, labels.options());
    for (int64_t from = 0; from < tokens.size(0); from += slice) {
      const int64_t size = std::min(slice, tokens.size(0) - from);
      const at::Tensor logits = nn::linear(tokens.narrow(0, from, size), weight.value, bias_value());
      count += logits.argmax(-1).eq(answers.narrow(0, from, size)).sum();
    }
    return count;
  }
  ops::TokenScores scores(const at::Tensor& hidden, const at::Tensor& labels, const ForwardContext&,
                          const ops::ScoreOptions& options) override {
    const ops::TokenScores found = ops::linear_token_scores(hidden.flatten(0, -2), weight.value, bias_value(),
                                                            labels.reshape({-1}), options, soft_cap);
    return {found.log_probabilities.view(labels.sizes()),
            options.entropy ? found.entropies.view(labels.sizes()) : at::Tensor()};
  }
  at::Tensor logits(const at::Tensor& hidden, const ForwardContext&) override {
    return ops::soft_capped(nn::linear(hidden, weight.value, bias_value()), soft_cap);
  }
  at::Tensor bias_value() const { return bias ? bias->value : at::Tensor(); }
  Parameter& weight;
  Parameter* bias;
  double soft_cap;
};

struct SerialClassifier : LossHead {
  SerialClassifier(Parameters& p, const std::string& name, int64_t hidden, int64_t classes, double deviation)
      : linear(p, name, hidden, classes, {.deviation = deviation}) {}
  at::Tensor loss_sum(const at::Tensor& hidden, const at::Tensor& labels, const ForwardContext&) override {
    return ops::cross_entropy(linear.forward(hidden).flatten(0, -2), labels.reshape({-1}));
  }
  at::Tensor found(const at::Tensor& hidden, const at::Tensor& labels, const ForwardContext&) override {
    return linear.forward(hidden).argmax(-1).eq(labels).sum();
  }
  ops::TokenScores scores(const at::Tensor& hidden, const at::Tensor& labels, const ForwardContext&,
                          const ops::ScoreOptions& options) override {
    return ops::token_scores(linear.forward(hidden), labels, options);
  }
  at::Tensor logits(const at::Tensor& hidden, const ForwardContext&) override { return linear.forward(hidden); }
  SerialLinear linear;
};

struct SerialOutputs : Outputs {
  SerialOutputs(Parameters& p, const std::string& name, int64_t hidden, int64_t out, const LinearOptions& o)
      : linear(p, name, hidden, out, with_segments(o, {})) {
    if (!o.taps.empty()) linear.product = p.product_between_blocks(linear.weight);
  }
  at::Tensor forward(const at::Tensor& hidden, const ForwardContext& step) override {
    const bool by_row = cache_of(step) != nullptr;
    if (!by_row && hidden.scalar_type() == linear.weight.value.scalar_type()) return linear.forward(hidden);
    return few_outputs(hidden, linear.weight.value, linear.bias ? linear.bias->value : at::Tensor(), by_row);
  }
  at::Tensor forward(const at::Tensor& hidden, const Pictures& pictures, const ForwardContext&) override {
    return few_outputs(*linear.product, hidden, linear.weight.value, linear.bias ? linear.bias->value : at::Tensor(),
                       pictures);
  }
  SerialLinear linear;
};

struct SerialModulation : Modulation {
  SerialModulation(Parameters& p, const std::string& name, int64_t hidden, int64_t count)
      : linear(p, name, hidden, count * hidden, {.deviation = 0}), count(count) {}
  std::vector<at::Tensor> forward(const at::Tensor& condition) override {
    return modulation_vectors(linear.forward(at::silu(condition)), count);
  }
  BlockLinear linear;
  int64_t count;
};

}  // namespace

std::unique_ptr<Expand> SerialLayers::expand(const std::string& name, int64_t in, int64_t out, const LinearOptions& o) {
  return std::make_unique<SerialExpand>(parameters(), name, in, out, o);
}

std::unique_ptr<Contract> SerialLayers::contract(const std::string& name, int64_t in, int64_t out,
                                                 const LinearOptions& o) {
  // the segments of the options describe the inputs
  return std::make_unique<SerialContract>(parameters(), name, in, out, with_segments(o, {}));
}

std::unique_ptr<HeadProjection> SerialLayers::heads(const std::string& name, const AttentionShape& s,
                                                    const LinearOptions& o) {
  return std::make_unique<SerialHeads>(parameters(), name, s, o);
}

std::unique_ptr<HeadProjection> SerialLayers::latent_heads(const std::string& name, const AttentionShape& s,
                                                           const LatentOptions& o) {
  check_latents(name, s, o);
  return make_latent_heads(*this, name, s, o, std::make_unique<SerialLatents>(parameters(), name, s, o));
}

std::unique_ptr<CrossProjection> SerialLayers::cross_heads(const std::string& name, const AttentionShape& s,
                                                           const LinearOptions& q, const LinearOptions& kv) {
  check_cross_heads(name, s);
  return std::make_unique<SerialCross>(parameters(), name, s, q, kv);
}

std::unique_ptr<HeadTable> SerialLayers::head_table(const std::string& name, int64_t rows, int64_t heads,
                                                    double deviation) {
  return std::make_unique<SerialHeadTable>(parameters(), name, rows, heads, deviation);
}

std::unique_ptr<OutputProjection> SerialLayers::from_heads(const std::string& name, const AttentionShape& s,
                                                           const LinearOptions& o) {
  const int64_t in = s.heads * s.value_dim() + tensor::total_size(o.segments);
  return std::make_unique<SerialOutput>(parameters(), name, in, s.hidden, with_segments(o, {}));
}

std::unique_ptr<Experts> SerialLayers::experts(const std::string& name, int64_t hidden, const ExpertOptions& o) {
  return make_experts(parameters(), reports(), name, hidden, o, std::make_shared<const ExpertRanks>());
}

std::unique_ptr<Embedding> SerialLayers::embedding(const std::string& name, int64_t vocabulary, int64_t hidden,
                                                   double deviation) {
  return std::make_unique<SerialEmbedding>(parameters(), name, vocabulary, hidden, deviation);
}

std::unique_ptr<Norm> SerialLayers::head_norm(const std::string& name, int64_t head_dim, const NormOptions& o) {
  return std::make_unique<HeadNorm>(parameters(), name, head_dim, o);
}

std::unique_ptr<Dense> SerialLayers::dense(const std::string& name, int64_t in, int64_t out, const LinearOptions& o) {
  return std::make_unique<SerialDense>(parameters(), name, in, out, with_segments(o, {}));  // they are of the inputs
}

std::unique_ptr<LossHead> SerialLayers::lm_head(const std::string& name, int64_t hidden, int64_t vocabulary,
                                                const LmHeadOptions& o) {
  Parameter& weight = o.tied ? o.tied->weight()
                             : parameters().add(name + ".weight", ShardSpec::whole({vocabulary, hidden}),
                                                Init::normal(o.deviation), true);
  Parameter* bias =
      o.bias ? &parameters().add(name + ".bias", ShardSpec::whole({vocabulary}), Init::zeros(), false) : nullptr;
  return std::make_unique<SerialLossHead>(weight, bias, o.soft_cap);
}

std::unique_ptr<LossHead> SerialLayers::classifier(const std::string& name, int64_t hidden, int64_t classes,
                                                   double deviation) {
  return std::make_unique<SerialClassifier>(parameters(), name, hidden, classes, deviation);
}

std::unique_ptr<Vector> SerialLayers::vector(const std::string& name, std::vector<int64_t> shape,
                                             const VectorOptions& o) {
  return std::make_unique<SerialVector>(parameters(), name, std::move(shape), o);
}

std::shared_ptr<const Features> SerialLayers::features(int64_t size, Place) {
  return std::make_shared<const Features>(size);
}

std::shared_ptr<const TokenRuns> SerialLayers::token_runs() { return std::make_shared<const TokenRuns>(); }

std::unique_ptr<Modulation> SerialLayers::modulation(const std::string& name, int64_t hidden, int64_t count) {
  require(count > 0, "model", "the vectors of a modulation must be 1 or more: got ", count, " for ", name);
  return std::make_unique<SerialModulation>(parameters(), name, hidden, count);
}

std::unique_ptr<Outputs> SerialLayers::outputs(const std::string& name, int64_t hidden, int64_t out,
                                               const LinearOptions& o) {
  require(out > 0, "model", "outputs must be 1 or more: got ", out, " for ", name);
  return std::make_unique<SerialOutputs>(parameters(), name, hidden, out, o);
}

}  // namespace colossal::nn

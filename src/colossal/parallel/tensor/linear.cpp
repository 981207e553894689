#include "colossal/parallel/tensor/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/comm/collectives.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/few_outputs.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/latent_heads.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/recompute.h"
#include "colossal/parallel/tensor/activations.h"

namespace colossal::parallel {
namespace {

/// Identity on a parameter whose rows from `first` on are copies held by all ranks of `group`. Each copy gets
/// gradients only from its own query heads, so the true gradient is the sum over the copies.
struct SumCopiesGradient : torch::autograd::Function<SumCopiesGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& parameter, int64_t first,
                            int64_t group) {
    context->set_materialize_grads(false);
    context->saved_data["first"] = first;
    context->saved_data["group"] = group;
    return parameter.view_as(parameter);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (!gradients[0].defined()) return {at::Tensor(), {}, {}};  // the gradient is deferred and summed elsewhere
    const int64_t first = context->saved_data["first"].toInt();
    auto* group = reinterpret_cast<comm::Group*>(context->saved_data["group"].toInt());
    at::Tensor gradient = gradients[0].clone();  // a clone, because other code may hold the gradient
    at::Tensor copies = gradient.narrow(0, first, gradient.size(0) - first);
    group->all_reduce(copies, comm::Reduce::Sum).wait();
    return {gradient, {}, {}};
  }
};

at::Tensor sum_copies_gradient(const at::Tensor& parameter, int64_t first, comm::Group& group) {
  if (group.size() == 1 || first >= parameter.size(0)) return parameter;
  return SumCopiesGradient::apply(parameter, std::max<int64_t>(first, 0), reinterpret_cast<int64_t>(&group));
}

/// Returns the product of one process, which is never deleted.
std::shared_ptr<const nn::Product> local_product() { return {std::shared_ptr<void>(), &nn::serial_product()}; }

}  // namespace

tensor::ShardSpec weight_spec(const Layout& layout, const WeightSplit& split, const std::vector<int64_t>& sizes,
                              std::vector<tensor::Segment> out_segments, std::vector<tensor::Segment> in_segments) {
  auto spec = tensor::ShardSpec::split(sizes, 0, split.out, std::move(out_segments));
  spec.splits[1] = tensor::ShardSpec::split(sizes, 1, split.in, std::move(in_segments)).splits[1];
  spec.splits[0].shards = split.out_shards;
  spec.gradient_axes = layout.weight_copies;
  return spec;
}

TensorLinear::TensorLinear(nn::Parameters& p, std::shared_ptr<const Layout> layout, const Direction& direction,
                           nn::Parameter& weight, std::optional<Table> bias)
    : layout_(std::move(layout)),
      product_(p.product_for(weight, direction.product)),
      deferred_(p.deferred()),
      weight_(weight),
      bias_(std::move(bias)),
      out_(weight.spec.room(0, layout_->mesh->coordinates())) {}

std::unique_ptr<TensorLinear> TensorLinear::expand_by(const std::shared_ptr<const nn::Product>& product,
                                                      nn::Parameters& p, std::shared_ptr<const Layout> layout,
                                                      const std::string& name, int64_t in, int64_t out,
                                                      const nn::LinearOptions& o) {
  nn::Parameter& weight =
      p.add(name + ".weight", weight_spec(*layout, layout->expand.weight, o.weight_sizes(out, in), o.segments),
            nn::Init::normal(o.deviation), true);
  weight.hidden_matrix = o.taps.empty();
  std::optional<Table> bias;
  if (o.bias)
    bias.emplace(p, *layout, name + ".bias", std::vector<int64_t>{out}, layout->inside,
                 Table::Options{.segments = o.segments});
  return std::unique_ptr<TensorLinear>(
      new TensorLinear(p, layout, {.weight = layout->expand.weight, .product = product}, weight, bias));
}

std::unique_ptr<TensorLinear> TensorLinear::expand(nn::Parameters& p, std::shared_ptr<const Layout> layout,
                                                   const std::string& name, int64_t in, int64_t out,
                                                   const nn::LinearOptions& o) {
  return expand_by(layout->expand.product, p, layout, name, in, out, o);
}

std::unique_ptr<TensorLinear> TensorLinear::alone(nn::Parameters& p, std::shared_ptr<const Layout> layout,
                                                  const std::string& name, int64_t in, int64_t out,
                                                  const nn::LinearOptions& o) {
  return expand_by(local_product(), p, std::move(layout), name, in, out, o);
}

std::unique_ptr<TensorLinear> TensorLinear::contract(nn::Parameters& p, std::shared_ptr<const Layout> layout,
                                                     const std::string& name, int64_t in, int64_t out,
                                                     const nn::LinearOptions& o,
                                                     const std::vector<tensor::Segment>& out_segments) {
  nn::Parameter& weight =
      p.add(name + ".weight",
            weight_spec(*layout, layout->contract.weight, o.weight_sizes(out, in), out_segments, o.segments),
            nn::Init::normal(o.deviation), true);
  weight.hidden_matrix = o.taps.empty();
  std::optional<Table> bias;
  if (o.bias)
    bias.emplace(p, *layout, name + ".bias", std::vector<int64_t>{out}, layout->outside,
                 Table::Options{.segments = out_segments});
  return std::unique_ptr<TensorLinear>(new TensorLinear(p, layout, layout->contract, weight, bias));
}

at::Tensor TensorLinear::forward(const at::Tensor& x, const nn::Unary& before) const {
  return nn::linear(*product_, x, weight_.value, bias_ ? bias_->value() : at::Tensor(), out_, &deferred_, before);
}

at::Tensor TensorLinear::forward_taps(const std::vector<at::Tensor>& x) const {
  return nn::sum_of_taps(x, weight_.value, bias_ ? bias_->value() : at::Tensor(),
                         [&](const at::Tensor& own, const at::Tensor& weight, const at::Tensor& bias) {
                           return nn::linear(*product_, own, weight, bias, out_, nullptr);
                         });
}

at::Tensor TensorLinear::forward(const at::Tensor& x, const nn::Pictures& pictures, const nn::Unary& before) const {
  return nn::convolved(*product_, x, weight_.value, bias_ ? bias_->value() : at::Tensor(), out_, pictures, before);
}

std::unique_ptr<TensorLinear> TensorLinear::inside(nn::Parameters& p, std::shared_ptr<const Layout> layout,
                                                   const std::string& name, int64_t in, int64_t out,
                                                   const nn::LinearOptions& o) {
  auto spec = tensor::ShardSpec::split({out, in}, 0, layout->inside.columns, o.segments);
  for (const auto* axes :
       {&layout->inside.batch, &layout->inside.sequence})  // axes along which ranks hold other tokens
    spec.gradient_axes.insert(spec.gradient_axes.end(), axes->begin(), axes->end());
  nn::Parameter& weight = p.add(name + ".weight", std::move(spec), nn::Init::normal(o.deviation), true);
  weight.hidden_matrix = true;
  return std::unique_ptr<TensorLinear>(
      new TensorLinear(p, layout, {.weight = {}, .product = local_product()}, weight, {}));
}

at::Tensor TensorLinear::forward_with_copies(const at::Tensor& x, int64_t first, comm::Group& copies) const {
  const at::Tensor& weight = weight_.value;
  // number of rows in earlier shards
  const tensor::MeshCoordinates& coordinates = layout_->mesh->coordinates();
  const int64_t before =
      coordinates.index(layout_->expand.weight.out_shards) * weight_.spec.local_shape(coordinates)[0];
  const at::Tensor bias = bias_ ? sum_copies_gradient(bias_->value(), first, copies) : at::Tensor();
  const at::Tensor summed = weight.requires_grad() ? sum_copies_gradient(weight, first - before, copies) : weight;
  // parameters of wrappers, e.g. the matrices of an adapter: those with rows for these outputs have copies, too
  std::vector<at::Tensor> own;
  const std::vector<nn::Parameter*> parameters = product_->parameters();
  const std::vector<int64_t> first_outputs = product_->first_outputs();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& value = parameters[i]->value;
    own.push_back(first_outputs.at(i) < 0 ? value : sum_copies_gradient(value, first - first_outputs[i], copies));
  }
  return nn::linear(*product_, x, summed, bias, out_, &deferred_, {}, own);
}

TensorHeads::TensorHeads(nn::Parameters& p, std::shared_ptr<const Layout> layout, const std::string& name,
                         const nn::AttentionShape& s, nn::LinearOptions options)
    : layout_(std::move(layout)),
      shape_(s),
      split_(s, layout_->mesh->coordinates().size(layout_->inside.columns)),
      copies_(layout_->mesh->neighbours(layout_->inside.columns, static_cast<int>(split_.kv_copies))),
      order_(SequenceOrder::inside(*layout_)) {
  options.segments = split_.fused();
  fused_ = TensorLinear::expand(p, layout_, name, s.hidden, (s.heads + 2 * s.kv_heads) * s.head_dim, options);
}

nn::Heads TensorHeads::forward(const at::Tensor& x, const nn::ForwardContext& step) {
  // the first row of k follows those of q
  const at::Tensor y = fused_->forward_with_copies(x, split_.heads_local * shape_.head_dim, copies_);
  nn::Heads heads =
      nn::split_heads(order_.by_sequence(y, step), split_.heads_local, split_.kv_heads_local, shape_.head_dim);
  heads.tokens = tokens_of(*layout_, layout_->inside, step);
  heads.first_head = layout_->mesh->coordinates().index(layout_->inside.columns) * split_.heads_local;
  return heads;
}

TensorCrossHeads::TensorCrossHeads(nn::Parameters& p, std::shared_ptr<const Layout> layout, const std::string& name,
                                   const nn::AttentionShape& s, nn::LinearOptions q, nn::LinearOptions kv)
    : layout_(std::move(layout)),
      split_(s, layout_->mesh->coordinates().size(layout_->inside.columns)),
      head_dim_(s.head_dim) {
  require(layout_->outside.sequence == layout_->inside.sequence, "parallel",
          "a projection of two hidden states must have the same tokens inside and outside: got a layout that gathers "
          "those of one; leave out parallel.tensor.sequence");
  q.segments = {split_.q};
  kv.segments = {split_.kv, split_.kv};
  q_ = TensorLinear::expand(p, layout_, name + ".q", s.hidden, s.heads * s.head_dim, q);
  kv_ = TensorLinear::expand(p, layout_, name + ".kv", s.source(), 2 * s.heads * s.head_dim, kv);
}

nn::Heads TensorCrossHeads::forward(const at::Tensor& x, const at::Tensor& source, const nn::ForwardContext& step) {
  nn::Heads heads =
      nn::cross_heads_of(q_->forward(x), source.size(1) > 0 ? kv_->forward(source) : at::Tensor(), head_dim_);
  heads.tokens = tokens_of(*layout_, layout_->inside, step);
  heads.first_head = layout_->mesh->coordinates().index(layout_->inside.columns) * split_.heads_local;
  return heads;
}

TensorDense::TensorDense(nn::Parameters& p, std::shared_ptr<const Layout> layout, const std::string& name, int64_t in,
                         int64_t out, const nn::LinearOptions& o)
    : features_(layout->mesh->group(layout->outside.columns)),
      weight_(p, *layout, name + ".weight", o.weight_sizes(out, in), layout->outside,
              {.features = 1, .segments = o.segments, .init = nn::Init::normal(o.deviation), .decay = true}) {
  if (o.bias) bias_.emplace(p, *layout, name + ".bias", std::vector<int64_t>{out}, layout->outside, Table::Options{});
  product_ = p.product_between_blocks(weight_.parameter());
}

at::Tensor TensorDense::forward(const at::Tensor& x) {
  const auto product = [&](const at::Tensor& bias) {
    return nn::linear(x, weight_.value(), bias, nullptr, {}, *product_);
  };
  if (features_.size() == 1) return product(bias_ ? bias_->value() : at::Tensor());
  return complete(product({}));
}

at::Tensor TensorDense::forward(const at::Tensor& x, const nn::Pictures& pictures) {
  const auto product = [&](const at::Tensor& bias) {
    const at::Tensor weight = weight_.value();
    return nn::convolved(*product_, x, weight, bias, weight.size(0), pictures);
  };
  if (features_.size() == 1) return product(bias_ ? bias_->value() : at::Tensor());
  return complete(product({}));
}

at::Tensor TensorDense::complete(const at::Tensor& share) const {
  const at::Tensor y = comm::reduce_scatter(share, -1, features_);
  return bias_ ? y + bias_->value() : y;
}

TensorOutputs::TensorOutputs(nn::Parameters& p, std::shared_ptr<const Layout> layout, const std::string& name,
                             int64_t hidden, int64_t out, const nn::LinearOptions& o)
    : layout_(std::move(layout)),
      weight_(p, *layout_, name + ".weight", o.weight_sizes(out, hidden), layout_->outside,
              {.features = 1, .init = nn::Init::normal(o.deviation), .decay = true}) {
  if (o.bias)
    bias_.emplace(p, *layout_, name + ".bias", std::vector<int64_t>{out}, layout_->outside,
                  Table::Options{.features = -1});
  if (!o.taps.empty()) product_ = p.product_between_blocks(weight_.parameter());
}

at::Tensor TensorOutputs::summed(const std::function<at::Tensor(const at::Tensor& bias)>& product) const {
  comm::Group& features = layout_->mesh->group(layout_->outside.columns);
  const at::Tensor bias = bias_ ? bias_->value() : at::Tensor();
  if (features.size() == 1) return product(bias);
  const at::Tensor y = comm::reduce_from(product({}), features);
  return bias_ ? y + bias.to(y.scalar_type()) : y;
}

at::Tensor TensorOutputs::own(const at::Tensor& hidden, bool by_row) const {
  return summed([&](const at::Tensor& bias) { return nn::few_outputs(hidden, weight_.value(), bias, by_row); });
}

at::Tensor TensorOutputs::forward(const at::Tensor& hidden, const nn::Pictures& pictures,
                                  const nn::ForwardContext& step) {
  const at::Tensor here = summed(
      [&](const at::Tensor& bias) { return nn::few_outputs(*product_, hidden, weight_.value(), bias, pictures); });
  return joined(*layout_, layout_->outside, here, step);
}

at::Tensor TensorOutputs::forward(const at::Tensor& hidden, const nn::ForwardContext& step) {
  return joined(*layout_, layout_->outside, own(hidden, nn::cache_of(step) != nullptr), step);
}

TensorLatents::TensorLatents(nn::Parameters& p, std::shared_ptr<const Layout> layout, const std::string& name,
                             const nn::AttentionShape& s, const nn::LatentOptions& o)
    : LatentLinears(nn::LatentSplit(s, o, layout->mesh->coordinates().size(layout->inside.columns))),
      layout_(std::move(layout)),
      copied_(o.q_rank > 0 ? 0 : split.q_rows),
      copies_(layout_->mesh->group(layout_->inside.columns)),
      order_(SequenceOrder::inside(*layout_)) {
  const auto options = [&](std::vector<tensor::Segment> segments) {
    return nn::LinearOptions{.bias = false, .deviation = o.deviation, .segments = std::move(segments)};
  };
  down_ = TensorLinear::expand(p, layout_, name + ".latent", s.hidden, split.down_size(), options(split.down));
  kv_up_ = TensorLinear::inside(p, layout_, name + ".kv_up", o.kv_rank, split.kv_up.size, options({split.kv_up}));
  kv_up_->keep_weight();
  if (o.q_rank > 0)
    q_up_ = TensorLinear::inside(p, layout_, name + ".q_up", o.q_rank, split.q.size, options({split.q}));
}

at::Tensor TensorLatents::down(const at::Tensor& x, const nn::ForwardContext& step) {
  return order_.by_sequence(down_->forward_with_copies(x, copied_, copies_), step);
}

at::Tensor TensorLatents::q_up(const at::Tensor& latent) { return q_up_->forward(latent); }

at::Tensor TensorLatents::kv_up(const at::Tensor& latent) { return kv_up_->forward(latent); }

at::Tensor TensorLatents::kv_weight() const { return kv_up_->plain_weight(); }

void TensorLatents::place(nn::Heads& heads, const nn::ForwardContext& step) const {
  heads.tokens = tokens_of(*layout_, layout_->inside, step);
  heads.first_head = layout_->mesh->coordinates().index(layout_->inside.columns) * split.heads_local;
}

}  // namespace colossal::parallel

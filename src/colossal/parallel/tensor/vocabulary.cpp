#include "colossal/parallel/tensor/vocabulary.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "colossal/comm/collectives.h"
#include "colossal/nn/canonical.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/loss_head.h"
#include "colossal/ops/counted_rows.h"
#include "colossal/ops/linear_token_scores.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/ops/soft_cap.h"
#include "colossal/parallel/tensor/linear.h"
#include "colossal/tensor/read_scope.h"

namespace colossal::parallel {
namespace {

std::vector<std::string> token_axes(const Split& split) {
  std::vector<std::string> axes = split.batch;
  axes.insert(axes.end(), split.sequence.begin(), split.sequence.end());
  return axes;
}

/// Converts the tokens of each rank, x [B_local, S_local, ...], to all tokens: [B, S, ...].
at::Tensor gathered_tokens(at::Tensor x, const Layout& layout, const Split& split, const nn::ForwardContext& step) {
  if (const SequenceOrder order = SequenceOrder::whole(layout, split); order.ranks() > 1) {
    order.check(step);
    x = order.by_sequence(comm::gather_from(x, 0, layout.mesh->group(split.sequence)), step);
  }
  return comm::gather_from(x, 0, layout.mesh->group(split.batch));
}

/// Returns the words in this rank's part of a vocabulary split over `axes`.
ops::VocabularyRange range_of(const Layout& layout, const std::vector<std::string>& axes, int64_t room,
                              int64_t vocabulary) {
  const int64_t first = std::min(layout.mesh->coordinates().index(axes) * room, vocabulary);
  return {first, std::min(room, vocabulary - first)};
}

at::Tensor mirrored(const at::Tensor& tile, comm::Group& grid, int side) {
  const tensor::ReadScope read({tile});
  const int mirror = grid.rank() % side * side + grid.rank() / side;
  if (mirror == grid.rank()) return tile.view_as(tile);
  at::Tensor other = at::empty_like(tile);
  comm::Work sent = grid.send(tile.contiguous(), mirror);
  grid.recv(other, mirror).wait();
  sent.wait();
  return other;
}

/// Gives rank (i, j) of a square grid the tile of rank (j, i); backward returns the gradient.
struct Mirror : torch::autograd::Function<Mirror> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& tile, int64_t grid,
                            int64_t side) {
    context->saved_data["grid"] = grid;
    context->saved_data["side"] = side;
    return mirrored(tile, *reinterpret_cast<comm::Group*>(grid), static_cast<int>(side));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto& grid = *reinterpret_cast<comm::Group*>(context->saved_data["grid"].toInt());
    return {mirrored(gradients[0], grid, static_cast<int>(context->saved_data["side"].toInt())), {}, {}};
  }
};

/// The products of a Layout in the form that linear_cross_entropy and linear_token_scores need.
class LayoutProjection : public ops::Projection {
 public:
  /// `bias`: what logits() adds; undefined = nothing.
  LayoutProjection(std::shared_ptr<const nn::Product> product, int64_t columns, at::Tensor bias = {})
      : product_(std::move(product)), columns_(columns), bias_(std::move(bias)) {}
  at::Tensor logits(const at::Tensor& hidden, const at::Tensor& weight) override {
    return product_->forward(hidden, weight, bias_, columns_, product_->has_backward() ? &saved_ : nullptr);
  }
  void gradients(const at::Tensor& logits_gradient, at::Tensor* hidden, at::Tensor* weight) override {
    // Messages between ranks have the dtype of the model, except for fp16, whose range is too small for gradients
    // without their factor.
    const auto given = saved_.x.scalar_type(), type = given == at::kHalf ? logits_gradient.scalar_type() : given;
    nn::Product::Saved saved = saved_;
    saved.x = saved.x.to(type);
    saved.weight = saved.weight.to(type);
    const auto d = product_->backward(logits_gradient.to(type), saved,
                                      {hidden != nullptr, weight != nullptr, weight ? *weight : at::Tensor()});
    if (hidden) hidden->copy_(d.x);
  }

 private:
  std::shared_ptr<const nn::Product> product_;
  int64_t columns_;
  at::Tensor bias_;
  nn::Product::Saved saved_;
};

}  // namespace

void GroupReduction::max(at::Tensor& x) { group_.all_reduce(x, comm::Reduce::Max).wait(); }
void GroupReduction::sum(at::Tensor& x) { group_.all_reduce(x, comm::Reduce::Sum).wait(); }

VocabularyEmbedding::VocabularyEmbedding(nn::Parameters& p, std::shared_ptr<const Layout> layout,
                                         const std::string& name, int64_t vocabulary, int64_t hidden, double deviation)
    : layout_(std::move(layout)),
      table_(p.add(name + ".weight", weight_spec(*layout_, layout_->embedding, {vocabulary, hidden}),
                   nn::Init::normal(deviation), true)),
      ids_(layout_, layout_->embedding.out),
      words_(layout_->mesh->group(layout_->embedding.out)),
      pieces_(layout_->mesh->group(layout_->embedding.out_shards)),
      room_(table_.spec.room(0, layout_->mesh->coordinates())) {
  table_.looked_up = true;
}

at::Tensor VocabularyEmbedding::forward(const at::Tensor& ids, const nn::ForwardContext& step) {
  if (words_.size() == 1) return nn::lookup(comm::all_gather(table_.value, 0, pieces_), ids_.of(ids, step));
  const auto [first, valid] = range_of(*layout_, layout_->embedding.out, room_, table_.spec.shape[0]);
  const at::Tensor local = ids_.of(ids, step) - first;
  const at::Tensor elsewhere = (local < 0).bitwise_or_(local >= valid);
  const at::Tensor table = comm::all_gather(table_.value, 0, pieces_);
  const at::Tensor found = nn::lookup(table, local.masked_fill(elsewhere, 0)).masked_fill(elsewhere.unsqueeze(-1), 0);
  return ids_.differ() ? comm::reduce_scatter(found, 0, words_) : comm::reduce_from(found, words_);
}

VocabularyLossHead::VocabularyLossHead(nn::Parameters& p, std::shared_ptr<const Layout> layout, const std::string& name,
                                       int64_t hidden, int64_t vocabulary, const nn::LmHeadOptions& o)
    : layout_(std::move(layout)),
      weight_(o.tied ? o.tied->weight()
                     : p.add(name + ".weight", weight_spec(*layout_, layout_->expand.weight, {vocabulary, hidden}),
                             nn::Init::normal(o.deviation), true)),
      is_mirrored_(weight_.spec.splits[0].axes != layout_->expand.weight.out),
      logits_product_(p.product_for(weight_, layout_->expand.product)),
      scores_product_(logits_product_->has_backward() ? layout_->expand.product : logits_product_),
      order_(SequenceOrder::inside(*layout_)),
      room_(weight_.spec.room(0, layout_->mesh->coordinates())),
      soft_cap_(o.soft_cap) {
  if (o.bias)
    bias_.emplace(p, *layout_, name + ".bias", std::vector<int64_t>{vocabulary}, layout_->inside, Table::Options{});
}

at::Tensor VocabularyLossHead::weight() const {
  if (!is_mirrored_) return weight_.value;
  const std::string &row = weight_.spec.splits[0].axes.at(0), &column = weight_.spec.splits[1].axes.at(0);
  comm::Group& grid = layout_->mesh->group(std::vector<std::string>{row, column});
  if (grid.size() == 1) return weight_.value;
  return Mirror::apply(weight_.value, reinterpret_cast<int64_t>(&grid), layout_->mesh->size(row));
}

at::Tensor VocabularyLossHead::own_labels(const at::Tensor& labels, const nn::ForwardContext& step) const {
  const at::Tensor own = tokens_of(*layout_, layout_->inside, step).of(labels);
  return order_.by_rank(own, step).reshape({order_.ranks(), -1});
}

int64_t VocabularyLossHead::slice_of(const at::Tensor& own_labels, int64_t columns) const {
  return std::max<int64_t>(1,
                           ops::slice_tokens(own_labels.numel(), columns, weight_.value.device()) / own_labels.size(0));
}

at::Tensor VocabularyLossHead::loss_sum(const at::Tensor& hidden, const at::Tensor& labels,
                                        const nn::ForwardContext& step) {
  const at::Tensor tokens = hidden.reshape({-1, hidden.size(-1)}), own = own_labels(labels, step);
  at::Tensor loss;
  if (layout_->expand.product.get() == &nn::serial_product()) {
    loss =
        ops::linear_cross_entropy(tokens, weight_.value, own.reshape({-1}), {}, nullptr, 0, nullptr, bias(), soft_cap_);
  } else {
    GroupReduction words(layout_->mesh->group(layout_->inside.columns));
    LayoutProjection projection(layout_->expand.product, room_);
    const auto range = range_of(*layout_, layout_->inside.columns, room_, weight_.spec.shape[0]);
    loss = ops::linear_cross_entropy(tokens, weight(), own, range, &words, slice_of(own, room_), &projection, bias(),
                                     soft_cap_);
  }
  return comm::reduce_from(loss, layout_->mesh->group(token_axes(layout_->inside)));
}

at::Tensor VocabularyLossHead::found(const at::Tensor& hidden, const at::Tensor& labels,
                                     const nn::ForwardContext& step) {
  comm::Group& words = layout_->mesh->group(layout_->inside.columns);
  const at::Tensor tokens = hidden.reshape({-1, hidden.size(-1)}), own = own_labels(labels, step), w = weight(),
                   b = bias();
  const int64_t slice = slice_of(own, room_ * words.size());
  at::Tensor count = at::zeros({}, labels.options());
  for (int64_t from = 0; from < own.size(1); from += slice) {
    const int64_t size = std::min(slice, own.size(1) - from);
    // The cap is omitted, because it keeps the order except for values that it rounds to its ends.
    const at::Tensor part = nn::linear(*layout_->expand.product, tokens.narrow(0, from, size), w, b, room_, nullptr);
    const at::Tensor logits = comm::gather_from(part, -1, words).narrow(-1, 0, weight_.spec.shape[0]);
    count += logits.argmax(-1).eq(own.narrow(1, from, size).flatten()).sum();
  }
  layout_->mesh->group(token_axes(layout_->inside)).all_reduce(count, comm::Reduce::Sum).wait();
  return count;
}

// Ranks whose products communicate take the same number of rows, that of the rank with most labels. In 2D these are
// also the ranks of other rows of the grid, which have other rows of the batch.
std::optional<ops::CountedRows> VocabularyLossHead::counted_rows(const at::Tensor& labels, const at::Tensor& own,
                                                                 const nn::ForwardContext& step) const {
  if (layout_->inside.batch != layout_->outside.batch) return std::nullopt;
  const tensor::MeshCoordinates& ranks = layout_->mesh->coordinates();
  const at::Tensor of_all_rows =
      order_.by_rank(tokens_of(*layout_, layout_->inside, step).sequence.of(labels, 1, "sequence"), step)
          .reshape({order_.ranks() * ranks.size(layout_->inside.batch), -1});
  const at::Tensor counts = ops::counts_of(of_all_rows);
  if (!counts.defined()) return std::nullopt;
  return ops::CountedRows(own, ranks.index(layout_->outside.sequence) % order_.ranks(),
                          std::max<int64_t>(counts.max().item<int64_t>(), 1));
}

ops::TokenScores VocabularyLossHead::scores(const at::Tensor& hidden, const at::Tensor& labels,
                                            const nn::ForwardContext& step, const ops::ScoreOptions& options) {
  ops::check_scores(options);
  const at::Tensor tokens = hidden.reshape({-1, hidden.size(-1)}), own = own_labels(labels, step);
  const std::vector<int64_t> sizes{order_.ranks() * hidden.size(0), hidden.size(1)};
  const auto whole = [&](const at::Tensor& by_rank) {
    return joined(*layout_, layout_->inside, order_.by_sequence(by_rank.reshape(sizes), step), step);
  };
  ops::TokenScores found;
  const std::shared_ptr<const nn::Product>& product = nn::is_canonical(step) ? logits_product_ : scores_product_;
  if (product.get() == &nn::serial_product()) {
    found = ops::linear_token_scores(tokens, weight_.value, bias(), own.reshape({-1}), options, soft_cap_);
  } else {
    const std::optional<ops::CountedRows> rows = counted_rows(labels, own, step);
    const at::Tensor counted = rows ? rows->labels() : own;
    comm::Group& group = layout_->mesh->group(layout_->inside.columns);
    GroupReduction words(group);
    // logits() has the product add the bias, before it rounds
    const at::Tensor added = nn::is_canonical(step) && bias_ ? bias().detach() : at::Tensor();
    found = ops::linear_token_scores(
        rows ? rows->of(tokens) : tokens, weight(), bias(), counted, options, soft_cap_,
        {.range = range_of(*layout_, layout_->inside.columns, room_, weight_.spec.shape[0]),
         .reduction = group.size() > 1 ? &words : nullptr,
         .products = [product, room = room_,
                      added] { return std::make_unique<LayoutProjection>(product, room, added); },
         .slice = slice_of(counted, room_),
         .products_add_bias = added.defined()});
    if (rows) found.log_probabilities = rows->put_back(found.log_probabilities);
    if (rows && options.entropy) found.entropies = rows->put_back(found.entropies);
  }
  return {whole(found.log_probabilities), options.entropy ? whole(found.entropies) : at::Tensor()};
}

at::Tensor VocabularyLossHead::logits(const at::Tensor& hidden, const nn::ForwardContext& step) {
  const at::Tensor own =
      ops::soft_capped(nn::linear(*logits_product_, hidden, weight(), bias(), room_, nullptr), soft_cap_);
  const at::Tensor words =
      comm::gather_from(order_.by_sequence(own, step), -1, layout_->mesh->group(layout_->inside.columns));
  return gathered_tokens(words.narrow(-1, 0, weight_.spec.shape[0]), *layout_, layout_->inside, step);
}

TensorClassifier::TensorClassifier(nn::Parameters& p, std::shared_ptr<const Layout> layout, const std::string& name,
                                   int64_t hidden, int64_t classes, double deviation)
    : layout_(layout), classes_(p, std::move(layout), name, hidden, classes, {.deviation = deviation}) {}

at::Tensor TensorClassifier::counted(const at::Tensor& x, const nn::ForwardContext& step) const {
  const bool counts = tokens_of(*layout_, layout_->outside, step).sequence.has_first();
  return counts ? x : x.masked_fill(at::ones({}, x.options().dtype(at::kBool).requires_grad(false)), 0);
}

at::Tensor TensorClassifier::loss_sum(const at::Tensor& hidden, const at::Tensor& labels,
                                      const nn::ForwardContext& step) {
  const at::Tensor own = tokens_of(*layout_, layout_->outside, step).rows_of(labels);
  const at::Tensor loss = ops::cross_entropy(classes_.own(hidden).flatten(0, -2), own.reshape({-1}));
  return comm::reduce_from(counted(loss, step), layout_->mesh->group(token_axes(layout_->outside)));
}

at::Tensor TensorClassifier::found(const at::Tensor& hidden, const at::Tensor& labels, const nn::ForwardContext& step) {
  const at::Tensor own = tokens_of(*layout_, layout_->outside, step).rows_of(labels);
  at::Tensor count = counted(classes_.own(hidden).argmax(-1).eq(own).sum(), step).clone();
  layout_->mesh->group(token_axes(layout_->outside)).all_reduce(count, comm::Reduce::Sum).wait();
  return count;
}

ops::TokenScores TensorClassifier::scores(const at::Tensor& hidden, const at::Tensor& labels,
                                          const nn::ForwardContext& step, const ops::ScoreOptions& options) {
  ops::check_scores(options);
  return ops::token_scores(logits(hidden, step), labels, options);
}

at::Tensor TensorClassifier::logits(const at::Tensor& hidden, const nn::ForwardContext& step) {
  const Split& split = layout_->outside;
  const at::Tensor rows = comm::reduce_from(counted(classes_.own(hidden), step), layout_->mesh->group(split.sequence));
  return comm::gather_from(rows, 0, layout_->mesh->group(split.batch));
}

}  // namespace colossal::parallel

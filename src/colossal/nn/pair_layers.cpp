#include "colossal/nn/pair_layers.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/open_gate.h"
#include "colossal/ops/activation.h"
#include "colossal/tensor/whole_operator.h"

namespace colossal::nn {
namespace {

/// Parts of z in which inference makes the edges that it does not keep: more save memory and cost time.
constexpr int64_t kPairParts = 24;

at::Tensor masked(const at::Tensor& x, const at::Tensor& mask) {
  return mask.defined() ? x * mask.to(x.scalar_type()).unsqueeze(-1) : x;
}

at::Tensor part_of(const at::Tensor& mask, int64_t dim, int64_t first, int64_t count) {
  return mask.defined() ? mask.narrow(dim, first, count) : mask;
}

int64_t part_size(int64_t size) { return std::max<int64_t>((size + kPairParts - 1) / kPairParts, 1); }

/// Calls body(first, count) for parts of `size` elements with at most `step` each.
template <class Body>
void for_parts(int64_t size, int64_t step, const Body& body) {
  for (int64_t first = 0; first < size; first += step) body(first, std::min(step, size - first));
}

}  // namespace

TriangleMultiplication::TriangleMultiplication(Layers& make, const std::string& name, int64_t features,
                                               const TriangleOptions& options)
    : options_(options), ranks_(make.axial_ranks()) {
  const auto pair = [&](const std::string& edge, int64_t out) -> Edges {
    return {normed_layer(make, name + ".linear_" + edge + "_p", features, out, options.bias),
            open_gate(make, name + ".linear_" + edge + "_g", features, out, options.bias)};
  };
  norm_in_ = make.layer_norm(name + ".layer_norm_in", features, {});
  if (options.fused)
    both_ = pair("ab", 2 * options.hidden);
  else
    a_ = pair("a", options.hidden), b_ = pair("b", options.hidden);
  norm_out_ = make.layer_norm(name + ".layer_norm_out", options.hidden, {});
  out_ = silent_layer(make, name + ".linear_z", options.hidden, features, options.bias);
  gate_ = open_gate(make, name + ".linear_g", features, features, options.bias);
}

at::Tensor TriangleMultiplication::edge(const Edges& of, const at::Tensor& x, const at::Tensor& mask) const {
  return masked(ops::sigmoid_gate(of.gate->forward(x), of.projection->forward(x)), mask);
}

at::Tensor TriangleMultiplication::edges(int which, const at::Tensor& x, const at::Tensor& mask) const {
  if (options_.fused) return edge(both_, x, mask).narrow(-1, which * options_.hidden, options_.hidden);
  return edge(which == 0 ? a_ : b_, x, mask);
}

at::Tensor TriangleMultiplication::finish(const at::Tensor& products, const at::Tensor& x) const {
  return ops::sigmoid_gate(gate_->forward(x), out_->forward(norm_out_->forward(products)));
}

at::Tensor TriangleMultiplication::forward(const at::Tensor& z, const at::Tensor& mask) const {
  const at::Tensor x = norm_in_->forward(z), own = ranks_->part(mask, 1);
  at::Tensor a, b;
  if (options_.fused) {
    const std::vector<at::Tensor> both = edge(both_, x, own).chunk(2, -1);
    a = both[0], b = both[1];
  } else {
    a = edges(0, x, own), b = edges(1, x, own);
  }
  if (options_.triangle == ops::Triangle::Outgoing)
    return finish(ops::triangle_product(a, ranks_->gathered(b, 1, z.size(2)), options_.triangle), x);
  return finish(ranks_->summed_part(ops::triangle_product(a, b, options_.triangle), 1), x);
}

/// Returns the edges a (0) or b (1) of `count` rows or columns of z.
at::Tensor TriangleMultiplication::edges_of(int which, const at::Tensor& z, const at::Tensor& mask, int64_t dim,
                                            int64_t first, int64_t count) const {
  return edges(which, norm_in_->forward(z.narrow(dim, first, count).contiguous()), part_of(mask, dim, first, count));
}

/// Returns the products of this rank's rows, with the edges of other ranks in pieces. Each piece is of some rows of
/// every rank, because z, its edges of one kind and the products fill the memory. A rank whose rows have ended uses the
/// weights all the same, because ranks that share them gather them together.
at::Tensor TriangleMultiplication::products_of_pieces(const at::Tensor& z, const at::Tensor& mask) const {
  const bool outgoing = options_.triangle == ops::Triangle::Outgoing;
  const int64_t size = z.size(2), longest = ranks_->range(size, 0).size;
  const at::Tensor own = ranks_->part(mask, 1),
                   kept = at::empty({z.size(0), z.size(1), size, options_.hidden}, z.options()),
                   products = at::empty({z.size(0), z.size(1), size, options_.hidden}, z.options()),
                   none = products.narrow(1, 0, 0);
  ranks_->for_runs(size, part_size(longest), [&](int64_t first, int64_t count) {
    kept.narrow(1, first, count).copy_(edges_of(outgoing ? 0 : 1, z, own, 1, first, count));
  });
  for_parts(longest, part_size(longest), [&](int64_t first, int64_t count) {
    std::vector<int64_t> lengths;
    for (int64_t rank = 0; rank < ranks_->size(); ++rank)
      lengths.push_back(std::clamp<int64_t>(ranks_->range(size, rank).size - first, 0, count));
    const int64_t mine = lengths[static_cast<size_t>(ranks_->rank())];
    const auto place = [&](int64_t rank) { return ranks_->range(size, rank).first + first; };
    if (outgoing) {
      const at::Tensor piece = edges_of(1, z, own, 1, std::min(first, z.size(1)), mine);
      ranks_->each_piece(piece, 1, lengths, [&](const at::Tensor& b, int64_t rank) {
        if (b.size(1) > 0)
          products.narrow(2, place(rank), b.size(1)).copy_(ops::triangle_product(kept, b, options_.triangle));
      });
      return;
    }
    const at::Tensor sum = ranks_->sum_of_pieces(lengths, [&](int64_t rank) {
      const int64_t columns = lengths[static_cast<size_t>(rank)];
      const at::Tensor some = edges_of(0, z, own, 2, std::min(place(rank), size), columns);
      return columns == 0 ? none : ops::triangle_product(some, kept, options_.triangle);
    });
    if (mine > 0) products.narrow(1, first, mine).copy_(sum);
  });
  return products;
}

void TriangleMultiplication::add_to(at::Tensor& z, const at::Tensor& mask) const {
  require(!at::GradMode::is_enabled(), "triangle",
          "in-place multiplication must run without gradients: got gradients enabled; call forward(), or use "
          "at::NoGradGuard");
  if (tensor::operator_recorder()) {  // who runs the recorded operators decides on parts
    z.add_(forward(z, mask));
    return;
  }
  const bool outgoing = options_.triangle == ops::Triangle::Outgoing;
  if (ranks_->size() > 1) {
    const at::Tensor products = products_of_pieces(z, mask);
    ranks_->for_runs(z.size(2), part_size(ranks_->range(z.size(2), 0).size), [&](int64_t first, int64_t count) {
      const at::Tensor part = z.narrow(1, first, count);
      part.add_(finish(products.narrow(1, first, count), norm_in_->forward(part)));
    });
    return;
  }
  const int64_t dim = outgoing ? 1 : 2, size = z.size(dim);
  const auto each_part = [&](const auto& body) {
    for_parts(size, part_size(size), [&](int64_t first, int64_t count) {
      const at::Tensor part = z.narrow(dim, first, count);
      body(first, count, part, norm_in_->forward(part.contiguous()), part_of(mask, dim, first, count));
    });
  };
  // The edges of which every product needs all: b_jk, or a_ki.
  const at::Tensor whole = at::empty({z.size(0), z.size(1), z.size(2), options_.hidden}, z.options());
  each_part([&](int64_t first, int64_t count, const at::Tensor&, const at::Tensor& x, const at::Tensor& own) {
    whole.narrow(dim, first, count).copy_(edges(outgoing ? 1 : 0, x, own));
  });
  each_part([&](int64_t, int64_t, const at::Tensor& part, const at::Tensor& x, const at::Tensor& own) {
    const at::Tensor some = edges(outgoing ? 0 : 1, x, own);
    part.add_(finish(outgoing ? ops::triangle_product(some, whole, options_.triangle)
                              : ops::triangle_product(whole, some, options_.triangle),
                     x));
  });
}

TriangleAttention::TriangleAttention(Layers& make, const std::string& name, int64_t features, const GatedHeads& heads,
                                     bool starting)
    : starting_(starting),
      ranks_(make.axial_ranks()),
      norm_(make.layer_norm(name + ".layer_norm", features, {})),
      bias_(normed_layer(make, name + ".linear", features, heads.heads, false)),
      attention_(make, name + ".mha", features, heads) {}

at::Tensor TriangleAttention::forward(const at::Tensor& z, const at::Tensor& mask) const {
  const int64_t cut = starting_ ? 1 : 2;
  const at::Tensor x = norm_->forward(z), bias = ranks_->gathered(bias_->forward(x), cut, z.size(3 - cut));
  // [B, heads, queries, keys]: of the edge from query to key, or for "ending" of the edge from key to query.
  return attention_.forward(
      x, starting_ ? AttendedAxis::Second : AttendedAxis::First,
      {.bias = starting_ ? bias.permute({0, 3, 1, 2}) : bias.permute({0, 3, 2, 1}), .mask = ranks_->part(mask, cut)});
}

Transition::Transition(Layers& make, const std::string& name, int64_t features, int64_t factor)
    : norm_(make.layer_norm(name + ".layer_norm", features, {})),
      up_(normed_layer(make, name + ".linear_1", features, factor * features, true)),
      down_(silent_layer(make, name + ".linear_2", factor * features, features, true)) {}

at::Tensor Transition::forward(const at::Tensor& x, const at::Tensor& mask) const {
  const at::Tensor inside = up_->forward(norm_->forward(x));
  if (!at::GradMode::is_enabled()) return masked(down_->forward(inside.clamp_min_(0)), mask);  // saves a tensor
  static const ops::Activation& relu = ops::activation("relu");
  return masked(down_->forward(relu.plain(inside)), mask);
}

}  // namespace colossal::nn

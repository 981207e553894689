// Layers of a pair representation z [B, N, N, c], as in AlphaFold 2 and ESMFold (Jumper et al. 2021, supplement,
// algorithms 11 to 15). Each returns what is added to z. Parameters have the names of OpenFold behind `name`. In
// layers that start at 0 ("final") the last linear layer has zero weights; gates start at weight 0 and bias 1.
//
// Ranks may cut z (nn/axial_ranks.h): of z [B, N, N, c] a rank then has some rows i, and in "ending" attention some
// columns j. Masks [B, N, N] are whole on every rank.
//
//   nn::TriangleMultiplication out(make, "tri_mul_out", 128, {.triangle = ops::Triangle::Outgoing});
//   z = z + out.forward(z, mask);                       // training: mask [B, N, N] or undefined
//   out.add_to(z, mask);                                // inference: in place, within twice the memory of z
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "colossal/nn/axial_ranks.h"
#include "colossal/nn/gated_attention.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/ops/triangle.h"

namespace colossal::nn {

/// Options of a triangle multiplication.
struct TriangleOptions {
  ops::Triangle triangle = ops::Triangle::Outgoing;
  int64_t hidden = 128;  ///< channels of the products
  /// True: linear_ab_p and linear_ab_g project both edges, a first (AlphaFold-Multimer v3, AlphaFold 3). False:
  /// linear_a_p, linear_a_g, linear_b_p and linear_b_g
  bool fused = false;
  bool bias = true;  ///< whether the linear layers have biases
};

/// Triangle multiplication: z_ij gets sigmoid(g(x)) * o(LN(sum over k of a_ik b_jk)) of x = LN(z), where each edge is
/// mask * sigmoid(gate(x)) * projection(x). "Incoming" sums a_ki b_kj.
///
/// Communication: "outgoing" gathers the rows of b; "incoming", whose k are the rank's rows, sums the products of all
///                ranks: N N `hidden` elements of AxialRanks::gathered() or summed_part(). add_to() sends as much in
///                pieces round a ring.
class TriangleMultiplication {
 public:
  TriangleMultiplication(Layers& make, const std::string& name, int64_t features, const TriangleOptions& options);
  at::Tensor forward(const at::Tensor& z, const at::Tensor& mask) const;
  /// Adds forward(z, mask) to z in place. Requires: gradients are disabled.
  /// Memory: besides z a tensor of N N `hidden`, of all edges b ("outgoing") or a ("incoming"), and some buffers of a
  ///         24th of it. The others are made for some rows (columns) of z at a time, which are then overwritten: such
  ///         an edge depends on its own row (column) alone. Of several ranks, each has of its part of z, the edges of
  ///         one kind and the products, and some pieces.
  /// Errors ("triangle"): gradients are enabled.
  void add_to(at::Tensor& z, const at::Tensor& mask) const;

 private:
  struct Edges {
    std::unique_ptr<Dense> projection, gate;
  };
  at::Tensor edge(const Edges& of, const at::Tensor& x, const at::Tensor& mask) const;
  /// Returns the edges a (0) or b (1) of x = LN(z).
  at::Tensor edges(int which, const at::Tensor& x, const at::Tensor& mask) const;
  at::Tensor finish(const at::Tensor& products, const at::Tensor& x) const;
  at::Tensor edges_of(int which, const at::Tensor& z, const at::Tensor& mask, int64_t dim, int64_t first,
                      int64_t count) const;
  at::Tensor products_of_pieces(const at::Tensor& z, const at::Tensor& mask) const;

  TriangleOptions options_;
  std::shared_ptr<const AxialRanks> ranks_;
  std::unique_ptr<Norm> norm_in_, norm_out_;
  Edges a_, b_, both_;
  std::unique_ptr<Dense> out_, gate_;
};

/// Attention of the edges of a node, with a bias of the third edge of the triangle.
class TriangleAttention {
 public:
  /// `starting`: row i attends along k with bias b_jk. Otherwise ("ending") column j attends along k with bias b_ki,
  /// and a rank has some columns.
  /// Communication: AxialRanks::gathered() of the bias, N N heads.
  TriangleAttention(Layers& make, const std::string& name, int64_t features, const GatedHeads& heads, bool starting);
  at::Tensor forward(const at::Tensor& z, const at::Tensor& mask) const;

 private:
  bool starting_;
  std::shared_ptr<const AxialRanks> ranks_;
  std::unique_ptr<Norm> norm_;
  std::unique_ptr<Dense> bias_;
  GatedAttention attention_;
};

/// Two linear layers with ReLU between them behind a norm: x [.., c] -> [.., c], through `factor` c features.
class Transition {
 public:
  Transition(Layers& make, const std::string& name, int64_t features, int64_t factor);
  /// Elements where `mask` is 0 get 0; undefined = none.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) const;

 private:
  std::unique_ptr<Norm> norm_;
  std::unique_ptr<Dense> up_, down_;
};

}  // namespace colossal::nn

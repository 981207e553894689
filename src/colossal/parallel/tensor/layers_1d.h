// Tensor parallelism in one dimension (Megatron-LM, arXiv:1909.08053): features split, tokens replicated.
#pragma once
#include <cstdint>

#include "colossal/comm/mesh.h"
#include "colossal/nn/serial_layers.h"

namespace colossal::parallel {

/// p = mesh.size("tensor"). Norms, positions and dropout are those of one process: what they see is whole on every rank.
///
/// Layout:        expand [out/p, in] by rows; contract [out, in/p] by columns, its bias whole and added once, after the sum;
///                heads whole (nn::HeadSplit); embedding and head [V/p, H] by rows, V padded to a multiple of p.
/// Communication: each expand or heads sends one all_reduce of dx in backward, each contract or from_heads one of y in forward:
///                2 (p-1)/p * B*S*H elements apiece, 8 (p-1)/p * B*S*H and 4 calls for a transformer layer (+ one all_reduce of the kv rows of dW
///                among the neighbours that share kv heads). Embedding: one of B*S*H in forward. Loss: ops::linear_cross_entropy's
///                reductions of 3 B*S in forward, one all_reduce of dHidden in backward. Logits: one all_gather of [.., V].
/// Errors:        ids outside the vocabulary are the caller's to check.
class Layers1D : public nn::SerialLayers {
 public:
  Layers1D(nn::Parameters& parameters, comm::Mesh& mesh);
  std::unique_ptr<nn::Linear> expand(const std::string& name, int64_t in, int64_t out, const nn::LinearOptions&) override;
  std::unique_ptr<nn::Linear> contract(const std::string& name, int64_t in, int64_t out, const nn::LinearOptions&) override;
  std::unique_ptr<nn::HeadProjection> heads(const std::string& name, const nn::AttentionShape&,
                                            const nn::LinearOptions&) override;
  std::unique_ptr<nn::Linear> from_heads(const std::string& name, const nn::AttentionShape&,
                                         const nn::LinearOptions&) override;
  std::unique_ptr<nn::Embedding> embedding(const std::string& name, int64_t vocabulary, int64_t hidden,
                                           double deviation) override;
  std::unique_ptr<nn::LossHead> lm_head(const std::string& name, int64_t hidden, int64_t vocabulary, double deviation,
                                        nn::Embedding* tied) override;

 private:
  comm::Mesh& mesh_;
  comm::Group& group_;
};

}  // namespace colossal::parallel

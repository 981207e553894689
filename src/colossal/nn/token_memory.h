// The last tokens of each sequence, which layers with neighbours need in generation.
//
//   nn::TokenMemory memory(/*taken_back=*/4);
//   memory.take({{.id = 7, .first = 0, .tokens = 5}});     // a step reads tokens 0 to 4 of sequence 7
//   const nn::ForwardContext step{.parts = {nn::RememberedTokens{&memory}}};
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace colossal::nn {

/// The last hidden states of each sequence in each layer that asks for them (nn::Neighbours).
///
/// Memory:  before + taken_back tokens [B, F] of each sequence and layer.
/// Thread safety: none.
class TokenMemory {
 public:
  /// Tokens that a step reads of a sequence, in the order of the row.
  struct Sequence {
    int64_t id, first, tokens;
  };
  /// `taken_back`: number of tokens by which a sequence may step back, as after drafts that were refused.
  explicit TokenMemory(int64_t taken_back) : taken_back_(taken_back) {}
  /// Begins a step. A sequence whose `first` is 0 begins anew.
  void take(std::vector<Sequence> sequences) { sequences_ = std::move(sequences); }
  /// Forgets a sequence.
  void end(int64_t id);
  const std::vector<Sequence>& sequences() const { return sequences_; }
  int64_t taken_back() const { return taken_back_; }

  /// Returns the `count` states before the step's tokens of sequences()[index], [B, count, F] like `own` [B, tokens,
  /// F], with zeros before the first token.
  /// Errors ("model"): a sequence of which the memory has not read the tokens before `first`.
  at::Tensor before(int64_t layer, size_t index, int64_t count, const at::Tensor& own) const;
  /// Remembers count + taken_back states up to the end of the step's tokens of sequences()[index]. `last` [B, some, F]
  /// are the last of these tokens, or all of them.
  void remember(int64_t layer, size_t index, int64_t count, const at::Tensor& last);

 private:
  struct Last {
    at::Tensor states;  // [B, some, F], the last of which is token end - 1
    int64_t end;
  };
  int64_t taken_back_;
  std::vector<Sequence> sequences_;
  std::map<std::pair<int64_t, int64_t>, Last> last_;  // by sequence and layer
};

/// Part of a ForwardContext: the memory of tokens of a step that generates.
struct RememberedTokens {
  TokenMemory* memory;
};

}  // namespace colossal::nn

// Two sequences of a row with layers of their own that attend to each other as one sequence, such as the words of a
// caption and the patches of a picture.
//
//   const nn::JointSequence joint(make);
//   const nn::JointSteps steps = joint.steps(step, 77, 256);                        // 77 words, 256 patches
//   const nn::Heads both = joint.heads(of_words->forward(words, steps.first),       // words [B, 77 or this rank's, H]
//                                      of_patches->forward(patches, steps.second), steps);
//   const nn::Inside y = attention->forward(both, steps.both);
#pragma once
#include <cstdint>

#include "colossal/nn/attention.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"

namespace colossal::nn {

/// What layers over one of two sequences are given as their step, and layers over both.
struct JointSteps {
  ForwardContext first, second, both;
};

/// Divides both sequences, so that each rank holds a part of either and attention is as even as over one sequence.
class JointSequence {
 public:
  explicit JointSequence(Layers& make) : outside_(make.own_tokens()), inside_(make.inside_tokens()) {}

  /// Returns the steps of sequences of `first` and `second` tokens. The cut of `step` divides the second, whose tokens
  /// are those of the batch. The first is divided like any other dimension of kind Token (FieldPart). In the sequence
  /// of both, the first comes before the second.
  JointSteps steps(const ForwardContext& step, int64_t first, int64_t second) const;
  /// Returns the heads of both sequences, for an attention whose step is `steps.both`. Of its result, the first
  /// first.q.size(1) tokens belong to the first sequence.
  Heads heads(const Heads& first, const Heads& second, const JointSteps& steps) const;

 private:
  OwnTokens outside_, inside_;
};

}  // namespace colossal::nn

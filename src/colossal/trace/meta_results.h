// Results on meta of operators for which the C++ library has no kernel there. They have shapes, strides and dtypes, and
// no memory. Each function takes a call whose tensors are on meta.
#pragma once
#include "colossal/trace/heard_call.h"

namespace colossal::trace {

at::Tensor like_first(const HeardCall& call);  ///< norms: the first tensor, contiguous
at::Tensor attention_result(const HeardCall& call);
at::Tensor embedding_result(const HeardCall& call);
at::Tensor convolution_result(const HeardCall& call);  ///< also transposed ones; without rows too
at::Tensor where_result(const HeardCall& call);
at::Tensor index_select_result(const HeardCall& call);
at::Tensor pooled_result(const HeardCall& call);  ///< adaptive pooling
at::Tensor loss_result(const HeardCall& call);    ///< one number, or one for each target if `reduction` is 0
at::Tensor class_loss_result(const HeardCall& call);

/// Runs an operator on zeros of the host, to learn the shapes of its results, and returns them on meta. For operators
/// that nothing else knows. Memory: that of the results, while it runs.
std::vector<c10::IValue> results_of_zeros(const HeardCall& call);

}  // namespace colossal::trace

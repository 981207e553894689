// The first loss of a run whose reference is the model from which it starts. It is known, so a wrong reference is found
// before an update.
//
//   const double slack = first_loss_slack(keys, token_error("fp32", shape), tokens);
//   require(std::abs(loss - expected) <= slack, ...);
#pragma once
#include <string>

#include "colossal/models/shape.h"
#include "colossal/run/objectives/alignment/keys.h"

namespace colossal::align {

/// Returns how much the log-probability of a token may differ between two passes of the same weights, which add the
/// same numbers in other orders: 256 units of rounding of fp32 or fp64, 16 of 16 bits, whose products are summed in
/// fp32, and 0.5 with fp8. `precision`: precision.mode. Models with experts have at least 1/8, because rounding may
/// send a token to another expert.
double token_error(const std::string& precision, const models::ModelShape& shape);

/// Returns the largest difference of the first loss from the known one that rounding explains. `tokens`: the most
/// tokens of the answers of a row. Their errors are independent, so a sum over an answer is off by about
/// sqrt(tokens) * token_error, and a log-ratio, from two passes, by twice that. The slope of the loss at the start says
/// what follows for it.
double first_loss_slack(const run::AlignmentKeys& keys, double token_error, double tokens);

}  // namespace colossal::align

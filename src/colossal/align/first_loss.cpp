#include "colossal/align/first_loss.h"

#include <algorithm>
#include <cmath>

#include "colossal/models/shape_parts.h"

namespace colossal::align {

double token_error(const std::string& precision, const models::ModelShape& shape) {
  const double of_numbers = precision == "fp64"   ? std::ldexp(1, -44)
                            : precision == "fp16" ? std::ldexp(1, -6)
                            : precision == "bf16" ? std::ldexp(1, -3)
                            : precision == "fp8"  ? 0.5
                                                  : std::ldexp(1, -15);
  return shape.part<models::MixtureSizes>().experts > 0 ? std::max(of_numbers, 0.125) : of_numbers;
}

double first_loss_slack(const run::AlignmentKeys& keys, double token_error, double tokens) {
  const double beta = keys.beta_or(0.1);
  // Two passes give each log-ratio of the difference. The mean over an answer is off by at most the error of a token.
  const bool is_mean = keys.method == "ipo" && keys.loss != "sum";
  const double error = 2 * token_error * std::sqrt(is_mean ? 2 : tokens);
  double slope = beta;  // hinge; that of the others is at most beta / 2
  if (keys.method == "kto") slope = beta * std::max(keys.desirable_weight, keys.undesirable_weight);
  if (keys.method == "ipo") slope = 1 / beta;
  const double of_square = keys.method == "ipo" ? error * error : 0;
  const double of_likelihood = 2 * keys.nll * token_error;  // the likelihood is a mean over tokens
  // The loss itself is a sum of terms that are rounded, too.
  const double known = keys.method == "ipo" ? 0.25 / (beta * beta) : 1;
  return slope * error + of_square + of_likelihood + 16 * token_error / 256 * known;
}

}  // namespace colossal::align

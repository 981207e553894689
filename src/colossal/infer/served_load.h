// Requests that come at random times, and how long each waited: what a server's users would see.
//
//   const std::vector<infer::Arrival> arrivals = infer::random_arrivals({.rate = 4, .requests = 100}, vocabulary);
//   const infer::Served served = infer::serve(engine, arrivals, seconds_since_start);
//   std::printf("%.3f s\n", infer::percentile(served.first_token, 0.99));
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "colossal/infer/engine.h"

namespace colossal::infer {

struct LoadOptions {
  double rate = 1;  ///< requests a second, in the mean; their times are a Poisson process
  int64_t requests = 32;
  int64_t prompt_tokens = 128, new_tokens = 128;  ///< in the mean: each between half and one and a half of it
  int64_t seed = 0;
};

struct Arrival {
  double at;  ///< seconds after the start
  Request request;
};

/// In the order of their times; prompts are random ids below `vocabulary`, and nothing but their length ends answers.
/// Errors ("load"): a rate or numbers that are not positive.
std::vector<Arrival> random_arrivals(const LoadOptions& options, int64_t vocabulary);

/// Seconds, of each request in the order in which they ended.
struct Served {
  std::vector<double> first_token;  ///< from its arrival to its first token
  std::vector<double> whole;        ///< from its arrival to its end
  std::vector<double> token;        ///< between tokens behind the first, in the mean; requests of one token have none
  double seconds = 0;               ///< until the last one ended
  int64_t tokens = 0;               ///< of all answers
};

/// Adds each request when its time has come and steps until all have ended. `now` tells the seconds since it started:
/// on all ranks of a layout the same, whoever's clock it is; where nothing runs it is asked until the next arrival.
Served serve(Engine& engine, const std::vector<Arrival>& arrivals, const std::function<double()>& now);

/// The value that `share` of all are not above (nearest rank). Errors ("load"): no values.
double percentile(std::vector<double> values, double share);

}  // namespace colossal::infer

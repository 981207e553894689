// Simulates the load of a server: requests arrive at random times, and the latency of each is measured.
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
  double rate = 1;  ///< mean number of requests per second; arrivals are a Poisson process
  int64_t requests = 32;
  int64_t prompt_tokens = 128, new_tokens = 128;  ///< means; values are uniform in 0.5 to 1.5 times them
  int64_t seed = 0;
};

struct Arrival {
  double at;  ///< seconds after the start
  Request request;
};

/// Returns arrivals in the order of their times. Prompts are random ids below `vocabulary`, and completions end only by
/// their length. Errors ("load"): a rate or a number that is not positive.
std::vector<Arrival> random_arrivals(const LoadOptions& options, int64_t vocabulary);

/// Latencies in seconds, one entry per request in the order in which requests ended.
struct Served {
  std::vector<double> first_token;  ///< time from arrival to the first token
  std::vector<double> whole;        ///< time from arrival to the end
  std::vector<double> token;        ///< mean time between later tokens; requests with one token have no entry
  double seconds = 0;               ///< time until the last request ended
  int64_t tokens = 0;               ///< number of tokens of all completions
};

/// Adds each request at its arrival time and steps the engine until all have ended. `now` returns the seconds since the
/// start. It must return the same values on all ranks of a layout, from any clock. While the engine is idle, serve()
/// polls `now` until the next arrival.
Served serve(Engine& engine, const std::vector<Arrival>& arrivals, const std::function<double()>& now);

/// Returns the percentile by nearest rank: the smallest value that at least `share` (0 to 1) of the values do not
/// exceed. Errors ("load"): no values.
double percentile(std::vector<double> values, double share);

}  // namespace colossal::infer

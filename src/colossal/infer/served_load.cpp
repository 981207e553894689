#include "colossal/infer/served_load.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"

namespace colossal::infer {
namespace {

/// Returns a number in [0, 1) as a function of the seed, the purpose and the index.
double uniform(int64_t seed, const char* purpose, int64_t index) {
  const uint64_t bits = derive_seed(derive_seed(static_cast<uint64_t>(seed), purpose), static_cast<uint64_t>(index));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

/// Maps `uniform` to an integer between 0.5 and 1.5 times `mean`.
int64_t about(int64_t mean, double uniform) {
  const int64_t min = (mean + 1) / 2, max = mean + mean / 2;
  return min + static_cast<int64_t>(uniform * static_cast<double>(max - min + 1));
}

struct UnderWay {
  double arrived, first = 0;
  int64_t tokens = 0;
};

}  // namespace

std::vector<Arrival> random_arrivals(const LoadOptions& options, int64_t vocabulary) {
  require(options.rate > 0 && options.requests > 0 && options.prompt_tokens > 0 && options.new_tokens > 0, "load",
          "rate, requests and tokens must be positive: got ", options.rate, " requests per second, ", options.requests,
          " requests, ", options.prompt_tokens, " and ", options.new_tokens, " tokens");
  std::vector<Arrival> arrivals;
  double at = 0;
  int64_t drawn = 0;
  for (int64_t i = 0; i < options.requests; ++i) {
    at += -std::log1p(-uniform(options.seed, "arrivals", i)) / options.rate;
    Request request{.options = {.max_tokens = about(options.new_tokens, uniform(options.seed, "answers", i))}};
    const int64_t length = about(options.prompt_tokens, uniform(options.seed, "prompts", i));
    for (int64_t t = 0; t < length; ++t)
      request.prompt.push_back(
          static_cast<int64_t>(uniform(options.seed, "ids", drawn++) * static_cast<double>(vocabulary)));
    arrivals.push_back({at, std::move(request)});
  }
  return arrivals;
}

Served serve(Engine& engine, const std::vector<Arrival>& arrivals, const std::function<double()>& now) {
  Served served;
  std::map<int64_t, UnderWay> under_way;
  std::vector<Event> events;  // events of one step; they get the time at the end of the step
  const auto hear = [&events](const Event& event) { events.push_back(event); };
  size_t added = 0;
  while (added < arrivals.size() || engine.has_work()) {
    const double before = now();
    for (; added < arrivals.size() && arrivals[added].at <= before; ++added)
      under_way[engine.add(arrivals[added].request, hear)] = {arrivals[added].at};
    if (!engine.has_work()) continue;
    events.clear();
    engine.step();
    const double after = now();
    for (const Event& event : events) {
      UnderWay& request = under_way.at(event.id);
      if (event.is_answer() && request.tokens++ == 0) request.first = after;
      if (event.finish_reason == FinishReason::None) continue;
      served.first_token.push_back(request.first - request.arrived);
      served.whole.push_back(after - request.arrived);
      if (request.tokens > 1) served.token.push_back((after - request.first) / static_cast<double>(request.tokens - 1));
      served.tokens += request.tokens;
      served.seconds = after;
      under_way.erase(event.id);
    }
  }
  return served;
}

double percentile(std::vector<double> values, double share) {
  require(!values.empty(), "load", "a percentile needs at least one value");
  const auto rank = static_cast<int64_t>(std::ceil(share * static_cast<double>(values.size()))) - 1;
  const auto at = values.begin() + std::clamp<int64_t>(rank, 0, static_cast<int64_t>(values.size()) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace colossal::infer

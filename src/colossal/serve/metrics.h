// Numbers about a server for Prometheus.
//
//   serve::Metrics metrics;
//   metrics.generated_tokens += 1;
//   metrics.first_token_seconds.observe(0.2);
//   metrics.count_request("/v1/completions", 200);
//   exchange.answer({.body = serve::prometheus_text(metrics), .content_type = serve::kPrometheusType});
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace colossal::serve {

inline constexpr const char* kPrometheusType = "text/plain; version=0.0.4; charset=utf-8";

/// Counts durations in buckets of fixed bounds. Thread safety: any thread may call the members.
class Histogram {
 public:
  /// Upper bounds of the buckets in seconds; a further bucket has all longer durations.
  static constexpr std::array<double, 16> kBounds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                  0.5,   1,      2.5,   5,    10,    30,   60,  300};
  struct Counts {
    std::array<int64_t, kBounds.size() + 1> buckets{};  ///< durations of each bucket alone
    double sum = 0;                                     ///< seconds
  };

  void observe(double seconds);
  Counts counts() const;

 private:
  mutable std::mutex mutex_;
  Counts counts_;
};

/// The numbers of one server. The caller owns and updates them. Thread safety: any thread may use the members.
struct Metrics {
  std::atomic<int64_t> requests_running{0}, requests_waiting{0}, cache_blocks{0}, cache_blocks_used{0};  ///< gauges
  std::atomic<int64_t> prompt_tokens{0}, prefix_tokens_found{0}, generated_tokens{0};                    ///< counters
  Histogram first_token_seconds{}, between_tokens_seconds{}, request_seconds{};

  /// Counts an answer. `route` must be the path of a route, never text of a client, because each one is kept.
  void count_request(const std::string& route, int status);
  std::map<std::pair<std::string, int>, int64_t> requests() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> requests_;  // by route and status
};

/// Returns all numbers in the text format of Prometheus, with a line of help and of type for each name.
std::string prometheus_text(const Metrics& metrics);

}  // namespace colossal::serve

#include "colossal/serve/metrics.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/number.h"

namespace colossal::serve {
namespace {

void write_header(std::string& out, const char* name, const char* type, const char* help) {
  out += concat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

struct NumberRow {
  const char *name, *type, *help;
  std::atomic<int64_t> Metrics::* value;
};

constexpr NumberRow kNumberRows[] = {
    {"colossal_requests_running", "gauge", "Requests that have begun their first step.", &Metrics::requests_running},
    {"colossal_requests_waiting", "gauge", "Requests that wait for their first step.", &Metrics::requests_waiting},
    {"colossal_cache_blocks", "gauge", "Blocks of the KV cache.", &Metrics::cache_blocks},
    {"colossal_cache_blocks_used", "gauge", "Blocks of the KV cache that requests hold.", &Metrics::cache_blocks_used},
    {"colossal_prompt_tokens_total", "counter", "Tokens of prompts.", &Metrics::prompt_tokens},
    {"colossal_prefix_tokens_found_total", "counter", "Tokens of prompts that were found in the cache.",
     &Metrics::prefix_tokens_found},
    {"colossal_generated_tokens_total", "counter", "Tokens of answers.", &Metrics::generated_tokens},
};

struct HistogramRow {
  const char *name, *help;
  Histogram Metrics::* value;
};

constexpr HistogramRow kHistogramRows[] = {
    {"colossal_first_token_seconds", "Time from a request to its first token.", &Metrics::first_token_seconds},
    {"colossal_between_tokens_seconds", "Time between two tokens of a request.", &Metrics::between_tokens_seconds},
    {"colossal_request_seconds", "Time from a request to the end of its answer.", &Metrics::request_seconds},
};

void write_histogram(std::string& out, const char* name, const Histogram::Counts& counts) {
  int64_t total = 0;
  for (size_t i = 0; i < counts.buckets.size(); ++i) {
    total += counts.buckets[i];
    const bool is_last = i == Histogram::kBounds.size();
    out += concat(name, "_bucket{le=\"", is_last ? "+Inf" : print_number(Histogram::kBounds[i]), "\"} ", total, "\n");
  }
  out += concat(name, "_sum ", print_number(counts.sum), "\n", name, "_count ", total, "\n");
}

}  // namespace

void Histogram::observe(double seconds) {
  const size_t bucket = std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin();
  const std::scoped_lock lock(mutex_);
  ++counts_.buckets[bucket];
  counts_.sum += seconds;
}

Histogram::Counts Histogram::counts() const {
  const std::scoped_lock lock(mutex_);
  return counts_;
}

void Metrics::count_request(const std::string& route, int status) {
  const std::scoped_lock lock(mutex_);
  ++requests_[{route, status}];
}

std::map<std::pair<std::string, int>, int64_t> Metrics::requests() const {
  const std::scoped_lock lock(mutex_);
  return requests_;
}

std::string prometheus_text(const Metrics& metrics) {
  std::string out;
  for (const NumberRow& row : kNumberRows) {
    write_header(out, row.name, row.type, row.help);
    out += concat(row.name, " ", (metrics.*row.value).load(), "\n");
  }
  for (const HistogramRow& row : kHistogramRows) {
    write_header(out, row.name, "histogram", row.help);
    write_histogram(out, row.name, (metrics.*row.value).counts());
  }
  constexpr const char* kRequests = "colossal_requests_total";
  write_header(out, kRequests, "counter", "Requests that were answered, by route and status.");
  for (const auto& [labels, count] : metrics.requests())
    out += concat(kRequests, "{route=\"", labels.first, "\",status=\"", labels.second, "\"} ", count, "\n");
  return out;
}

}  // namespace colossal::serve

// The files of docker/ name only metrics that /metrics prints. The page of the server names all fields that it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/serve/metrics.h"
#include "colossal/serve/refused_fields.h"
#include "support/paths.h"

namespace colossal::serve::metrics_names_test {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

const fs::path kDocker = fs::path(test::source_dir()) / "docker";

std::set<std::string> metrics_named_in(const std::string& text) {
  static const std::regex name(R"(\bcolossal_[a-z_]+)");
  std::set<std::string> names;
  for (std::sregex_iterator match(text.begin(), text.end(), name), end; match != end; ++match)
    names.insert(match->str());
  return names;
}

/// Returns the names of the samples in a text of Prometheus: the first word of each line that is no comment.
std::set<std::string> samples_of(const std::string& text) {
  static const std::regex name(R"((?:^|\n)([a-z_]+))");
  std::set<std::string> names;
  for (std::sregex_iterator match(text.begin(), text.end(), name), end; match != end; ++match)
    names.insert((*match)[1]);
  return names;
}

std::set<std::string> printed() {
  Metrics metrics;
  metrics.count_request("/v1/completions", 200);  // the only metric that is printed after its first sample
  return samples_of(prometheus_text(metrics));
}

TEST(MetricsNames, MatchThoseInDockerFiles) {
  const std::set<std::string> known = printed();
  std::set<std::string> unknown, named;
  for (const auto& file : fs::directory_iterator(kDocker)) {
    for (const std::string& name : metrics_named_in(read_file(file.path(), 1 << 20))) {
      named.insert(name);
      if (!known.contains(name)) unknown.insert(file.path().filename().string() + ": " + name);
    }
  }
  EXPECT_THAT(unknown, IsEmpty());
  EXPECT_THAT(named, IsSupersetOf({"colossal_requests_running", "colossal_first_token_seconds_bucket"}));
}

TEST(MetricsNames, FindUnknownOnesInQueries) {
  EXPECT_FALSE(printed().contains("colossal_request_seconds"));  // a histogram has samples with endings only
  EXPECT_EQ(metrics_named_in("rate(colossal_request_secs_sum[1m]) / colossal_requests_total{route=\"/\"}"),
            (std::set<std::string>{"colossal_request_secs_sum", "colossal_requests_total"}));
}

TEST(MetricsNames, AppearInQueriesOfTheDashboard) {
  const auto dashboard = nlohmann::json::parse(read_file(kDocker / "dashboard.json", 1 << 20));
  ASSERT_FALSE(dashboard.at("panels").empty());
  for (const auto& panel : dashboard.at("panels"))
    for (const auto& target : panel.at("targets"))
      EXPECT_THAT(metrics_named_in(target.at("expr")), testing::Not(IsEmpty())) << panel.at("title");
}

TEST(PageOfTheServer, NamesRefusedFields) {
  const std::string page = read_file(kDocker.parent_path() / "docs/how-to/serving.md", 1 << 20);
  for (const std::string& name : refused_field_names())
    EXPECT_NE(page.find("`" + name + "`"), std::string::npos) << name;
}

}  // namespace
}  // namespace colossal::serve::metrics_names_test

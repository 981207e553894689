// The examples at the beginning of headers of plan and predict, compiled. tests/base/examples_test.cpp compares them
// with the headers.
#include <cstdio>
#include <string>

#include "colossal/base/file.h"
#include "colossal/plan/cluster.h"
#include "colossal/plan/plan_file.h"
#include "colossal/plan/profile.h"
#include "colossal/plan/solver.h"
#include "colossal/predict/search.h"
#include "colossal/predict/step.h"

namespace colossal::header_examples {

void profiles() {
  const plan::Profile profile = plan::find_profile("h100-8x");
  write_file("mine.toml", plan::profile_to_toml(profile));
  plan::Cluster(profile).product_seconds(4096, 4096, 4096, plan::NumberType::Bf16);
}

void solver() {
  const plan::Graph graph = plan::read_graph("graph.json");
  const plan::Plan plan = plan::solve(graph, plan::parse_mesh("data=2,tensor=4"), plan::Links{}, {});
  plan::write_plan(plan, graph, "plan.json");
}

void clusters(double sent_bytes) {
  const plan::Cluster cluster(plan::find_profile("h100-8x"));
  const plan::RankSpan data = cluster.span_of({0, 8, 16, 24});
  cluster.collective_seconds(plan::CommKind::AllReduce, sent_bytes, data);
  cluster.product_seconds(8192, 4096, 4096, plan::NumberType::Bf16);
}

void predicted_step(const run::Config& config, const models::ModelShape& shape) {
  const plan::Cluster cluster(plan::find_profile("h100-8x"));
  const predict::RecordedRoles roles = predict::record_roles(config, shape);
  const plan::Prediction prediction = predict::predict_step(config, shape, roles, cluster);
}

void search(const run::Config& config, const models::ModelShape& shape, const plan::Cluster& cluster) {
  const predict::SearchResult found = predict::search(config, shape, cluster, {.ranks = 64});
  std::fputs(found.best.front().table.c_str(), stdout);
}

}  // namespace colossal::header_examples

// The examples at the beginning of headers of plan and predict, compiled. tests/base/examples_test.cpp compares them
// with the headers.
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "colossal/base/file.h"
#include "colossal/data/batches.h"
#include "colossal/models/shape_parts.h"
#include "colossal/plan/cluster.h"
#include "colossal/plan/cluster_costs.h"
#include "colossal/plan/conversions.h"
#include "colossal/plan/costs.h"
#include "colossal/plan/failures.h"
#include "colossal/plan/graph.h"
#include "colossal/plan/log_grid.h"
#include "colossal/plan/plan_file.h"
#include "colossal/plan/prediction.h"
#include "colossal/plan/prediction_page.h"
#include "colossal/plan/profile.h"
#include "colossal/plan/rotor.h"
#include "colossal/plan/solver.h"
#include "colossal/plan/specs.h"
#include "colossal/plan/stage_cut.h"
#include "colossal/plan/step_picture.h"
#include "colossal/plan/strategies.h"
#include "colossal/plan/timeline.h"
#include "colossal/plan/transfers.h"
#include "colossal/predict/check.h"
#include "colossal/predict/layout_price.h"
#include "colossal/predict/layouts.h"
#include "colossal/predict/page.h"
#include "colossal/predict/rank_places.h"
#include "colossal/predict/role_costs.h"
#include "colossal/predict/roles.h"
#include "colossal/predict/search.h"
#include "colossal/predict/stage_seconds.h"
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
  cluster.collective_seconds(colossal::Collective::AllReduce, sent_bytes, data);
  cluster.product_seconds(8192, 4096, 4096, plan::NumberType::Bf16);
}

void predicted_step(const run::Config& config, const models::ModelShape& shape) {
  const plan::Cluster cluster(plan::find_profile("h100-8x"));
  const predict::RecordedRoles roles = predict::record_roles({config, shape});
  const plan::Prediction prediction = predict::predict_step({config, shape}, roles, cluster);
}

void search(const run::Config& config, const models::ModelShape& shape, const plan::Cluster& cluster) {
  const predict::SearchResult found = predict::search({config, shape}, cluster, {.ranks = 64});
  std::fputs(found.best.front().table.c_str(), stdout);
}

void graphs() {
  const plan::Graph graph = plan::read_graph("graph.json");
  for (const plan::Node& node : graph.nodes) std::puts(node.name.c_str());
}

void specs() {
  const plan::Mesh mesh = plan::parse_mesh("data=2,tensor=4");
  const plan::Spec spec = plan::parse_spec("[data+tensor, R]", mesh);
  const bool divides = plan::is_legal(spec, {16, 8}, mesh);
  std::puts(divides ? "legal" : "illegal");
}

void conversions(const plan::Spec& from, const plan::Spec& to, const plan::Mesh& mesh, const plan::Links& links) {
  const plan::Conversion path = plan::convert(plan::TensorType{{16, 8}}, from, to, mesh, links);
  for (const plan::Call& call : path.calls) std::puts(plan::name_of(call.movement));
}

void strategies(const plan::Mesh& mesh) {
  plan::Graph graph = plan::read_graph("graph.json");
  const int fc1 = graph.index_of("fc1");
  for (const plan::Strategy& s : plan::strategies_of(graph, fc1, mesh, {})) std::puts(s.name.c_str());
}

double seconds(const plan::Costs& costs, const StepEvents& events) {
  double sum = 0;
  for (const StepEvent& event : events.list)
    if (event.kind == StepEvent::Kind::Product) sum += costs.product_seconds(event);
  return sum;
}

void failures() {
  const plan::Failures failures{.device_hours = 50700, .restart = 300};
  const double interval = failures.best_interval(16384, 30);
  failures.goodput(16384, 30, interval);
  describe_failures(plan::lost_time(failures, 16384, 30, 6.5, 0.1));
}

void log_grid(const std::vector<double>& rates) {
  const plan::LogGrid grid({{1, 2}, {256, 1024, 4096}}, rates);
  grid.at({1, 512});
}

void rotor() {
  plan::Chain chain;
  for (int i = 0; i < 12; ++i)
    chain.stages.push_back(
        {.forward = 1, .backward = 2, .input = 64 << 20, .saved = 900 << 20, .backward_temporary = 64 << 20});
  chain.stages.push_back({.input = 64 << 20, .saved = 3 << 28, .backward_temporary = 3 << 28});
  const auto best = plan::plan_recomputation(chain, int64_t{6} << 30);
}

void stage_cut(run::Config& config, const std::function<double(int64_t, int64_t)>& sum) {
  const auto cut = plan::cut_stages(
      {.blocks = 12, .stages = 4, .micro_batches = 8, .seconds = [&](int64_t, int64_t from, int64_t to) {
         return sum(from, to);
       }});
  if (cut) config.parallel.pipeline.layers_per_stage = cut->layers;
}

void timeline(const StepEvents& first, const StepEvents& last, const plan::Costs& costs) {
  std::vector<plan::Role> roles;
  roles.push_back({.name = "stage 0", .ranks = {0, 1}, .events = first});
  roles.push_back({.name = "stage 1", .ranks = {2, 3}, .events = last});
  const plan::StepTimeline step = plan::simulate_step(roles, costs);
  step.seconds;
  step.parts().communication;
}

void cluster_costs(const std::vector<plan::Role>& roles) {
  const plan::Cluster cluster(plan::find_profile("h100-8x"));
  const plan::StepTimeline step = plan::simulate_step(roles, plan::ClusterCosts(cluster));
}

void transfers(const std::string& name) {
  plan::Transfers transfers;
  plan::Clock clock;
  const int call = transfers.add({.name = &name, .members = 1, .links = {0}});
  transfers.enqueue(call, 0);
  transfers.join(call, 0.5, clock.now(), clock);
  while (const auto next = clock.next(transfers)) transfers.end(next->index, clock);
}

void predictions(const run::Config& config, const models::ModelShape& shape, const plan::Cluster& cluster,
                 const std::string& folder) {
  const plan::Prediction prediction = predict::predict_step({config, shape}, cluster);
  std::fputs(plan::to_text(prediction).c_str(), stdout);
  write_file(folder + "/prediction.json", plan::to_json(prediction));
}

void prediction_page(const plan::Prediction& prediction, const std::vector<plan::Role>& roles, const plan::Costs& costs,
                     const std::vector<StepMemory>& memories) {
  const plan::StepTimeline step = plan::simulate_step(roles, costs);
  write_file("plan.html",
             plan::prediction_page(
                 prediction, {.title = "gpt2.toml on h100-8x", .roles = roles, .step = step, .memory = memories}));
}

void step_picture(const std::vector<plan::Role>& roles, const plan::StepTimeline& step,
                  const std::vector<StepMemory>& memory, const std::vector<plan::MemoryLimit>& limits) {
  std::string body = concat("<style>", plan::kPictureStyle, "</style>", plan::picture_legend());
  for (size_t r = 0; r < roles.size(); ++r) {
    body += plan::draw_streams(roles[r], step.roles[r], step.seconds, 1000);
    body += plan::draw_memory(plan::timed_memory(memory[r].curve, roles[r], step.roles[r]), step.seconds, limits);
  }
}

void checks(comm::World& world, comm::Group& everyone, const train::ConfiguredRun& run, data::Batches& batches,
            const predict::RecordedRoles& roles, const plan::Prediction& prediction) {
  const predict::CountedStep counted = predict::count_step(world, run, [&] { return batches.next(); });
  const std::vector<predict::CountedStep> all = predict::gather_steps(everyone, counted);
  const bool has_experts = run.models.main().shape.part<models::MixtureSizes>().experts > 0;
  const predict::Check check = predict::compare(predict::steps_of(roles, prediction), all, has_experts);
  if (check.differs()) std::fputs(predict::to_text(check).c_str(), stderr);
}

void layouts(const run::Config& config, const models::ModelShape& shape, const predict::Layout& layout,
             const std::function<double(const predict::LayoutSpace&, const predict::Layout&)>& price) {
  std::vector<double> seconds;
  const predict::LayoutSpace space({config, shape}, {.ranks = 8, .ranks_per_node = 8});
  space.for_each([&](const predict::Layout& layout) { seconds.push_back(price(space, layout)); });
  const run::Config chosen = space.config_of(layout);
}

void layout_prices(const predict::LayoutSpace& space, const models::ModelShape& shape, const plan::Cluster& cluster,
                   const predict::Layout& layout) {
  const predict::LayoutPrices prices(space, {.shape = shape}, cluster);
  const predict::LayoutPrice price = prices.of(layout);
}

void pages(const std::string& file, const run::Config& config, const models::ModelShape& shape,
           const plan::Cluster& cluster) {
  const predict::RecordedRoles roles = predict::record_roles({config, shape});
  const plan::Prediction prediction = predict::predict_step({config, shape}, roles, cluster);
  write_file(file, predict::prediction_page("gpt2.toml", config, roles, prediction, cluster));
}

void rank_places(const run::Config& config) {
  const predict::RankPlace sizes = predict::axis_sizes(config.parallel);
  const int64_t stage = predict::place_of_rank(sizes, 5)[predict::kPipelineAxis];
  std::printf("stage %ld\n", static_cast<long>(stage));
}

void recorded_stages(const run::Config& config, const models::ModelShape& shape, const plan::Cluster& cluster) {
  const auto prediction = predict::predict_step({config, shape}, predict::record_stages({config, shape}), cluster);
}

void role_costs(const plan::Cluster& cluster, const run::Config& config, const predict::RecordedRoles& roles,
                const std::vector<plan::Role>& simulated) {
  const predict::RoleCosts costs(cluster, config.parallel, roles);
  const plan::StepTimeline step = plan::simulate_step(simulated, costs);
}

void stage_seconds(run::Config& config, const models::Costs& costs, const plan::Prediction& prediction,
                   const plan::Cluster& cluster) {
  config.parallel.pipeline.layers_per_stage = predict::layers_by_costs(config, costs);
  const auto layers = predict::layers_by_seconds(config, costs, prediction, cluster.device_bytes());
}

}  // namespace colossal::header_examples

// The examples at the beginning of headers of run, train, align and infer. All of them are compiled, and some are run.
// tests/base/examples_test.cpp compares them with the headers. The example of run/program.h is in
// examples/own_objective.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "colossal/align/rollouts/appended_records.h"
#include "colossal/align/rollouts/records.h"
#include "colossal/base/file.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/base/log.h"
#include "colossal/base/run_folder.h"
#include "colossal/base/step_events.h"
#include "colossal/base/step_memory.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/infer/answer_scores.h"
#include "colossal/infer/decoding/lone_runner.h"
#include "colossal/infer/decoding/step_runner.h"
#include "colossal/infer/embeddings/pooling.h"
#include "colossal/infer/engine.h"
#include "colossal/infer/generation_defaults.h"
#include "colossal/infer/generation_options.h"
#include "colossal/infer/prompts/lines.h"
#include "colossal/infer/request.h"
#include "colossal/infer/text_scorer.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/optim/optimizer.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "colossal/run/adapters.h"
#include "colossal/run/external_names.h"
#include "colossal/run/low_rank_keys.h"
#include "colossal/run/objective.h"
#include "colossal/run/own_tables.h"
#include "colossal/run/program.h"
#include "colossal/run/saved_model.h"
#include "colossal/tensor/flops.h"
#include "colossal/train/engine.h"
#include "colossal/train/memory_needs.h"
#include "colossal/train/module_training.h"
#include "colossal/train/placed_model.h"
#include "colossal/train/record_step.h"
#include "colossal/train/step_reports.h"
#include "colossal/train/step_rule.h"
#include "colossal/train/store_options.h"
#include "colossal/train/trainer.h"
#include "support/temporary_folder.h"

namespace colossal::header_examples {
namespace {

TEST(HeaderExamples, JsonFields) {
  const infer::GenerationOptions defaults{.logprobs = 2};
  infer::GenerationOptions options = defaults;
  const auto object = parse_ordered_json(R"({"max_tokens": 5})", "the line", "generate");
  const std::vector<std::string> given = read_json(object, options, "generate");
  EXPECT_EQ(options.max_tokens, 5);
  EXPECT_EQ(options.logprobs, 2);
  EXPECT_EQ(given, std::vector<std::string>{"max_tokens"});

  struct Layout {
    int64_t data = 1;
    void fields(Fields& f) { f.member("data", data); }
  };
  const test::TemporaryFolder folder;
  const std::string path = folder / "layout.json";
  Layout layout{2};
  write_file(path, json_line(to_json_object(layout)));
  const auto again = read_stored<Layout>(read_json_object(path, "layout"), "layout");
  EXPECT_EQ(again.data, 2);
}

tensor::Batch table_batch(int64_t rows) {
  tensor::Batch batch;
  batch.add("targets", {at::ones({rows, 1}), {tensor::Dim::Row, tensor::Dim::Other}});
  return batch;
}
std::shared_ptr<const data::Samples> table_of(const run::DataRequest&) { return nullptr; }

TEST(HeaderExamples, Objective) {
  class Squares : public run::Objective {
    run::OpenedData open(const run::DataRequest& request) const override { return {.training = table_of(request)}; }
    tensor::Batch example(int64_t rows) const override { return table_batch(rows); }
    void check(const tensor::Batch& batch) const override { batch.at("targets"); }
    double weight(const tensor::Batch& batch) const override { return static_cast<double>(batch.rows()); }
    at::Tensor loss(const models::Model&, const models::States& end, const nn::ForwardContext& step) const override {
      return (end[0] - step.batch->at("targets")).square().sum();
    }
  };
  struct SquaresKeys {
    std::string target = "";
    void fields(Fields& f) { f.text("target", target, "column that is predicted"); }
    bool operator==(const SquaresKeys&) const = default;
  };
  run::Objectives objectives = run::built_in_objectives();
  objectives.add({.name = "squares",
                  .tables = {{"squares", SquaresKeys{}}},
                  .make = [](const run::Config&, const run::OwnTables&, const models::ModelShape&) {
                    return std::make_unique<Squares>();
                  }});
  const run::ObjectiveRow& row = objectives.at("squares");
  const auto objective = row.make({}, run::OwnTables(row.tables), {});
  const tensor::Batch batch = objective->example(3);
  EXPECT_NO_THROW(objective->check(batch));
  EXPECT_EQ(objective->weight(batch), 3);
  EXPECT_EQ(objective->loss({}, {at::zeros({3, 1})}, nn::step_of(batch)).item<double>(), 3);
}

TEST(HeaderExamples, OwnTables) {
  struct RegressionKeys {
    int64_t columns = 1;
    void fields(Fields& f) { f.integer("columns", columns, "", "columns that are predicted"); }
    bool operator==(const RegressionKeys&) const = default;
  };
  struct RankingKeys {
    double margin = 1;
    void fields(Fields& f) { f.number("margin", margin, "", "least distance of two scores"); }
    bool operator==(const RankingKeys&) const = default;
  };
  run::Config config;
  std::vector<run::OwnTable> tables{{"regression", RegressionKeys{}}, {"ranking", RankingKeys{}}};
  run::read_tables(config, tables);
  config.tables = run::document_of(tables);
  EXPECT_TRUE(run::has_table(config, "ranking"));
}

nn::Adapter make_adapter(const run::Config&, const OwnKeys&, const models::ModelShape&) { return {}; }

TEST(HeaderExamples, Adapters) {
  struct AdapterKeys {
    int64_t rank = 4;
    void fields(colossal::Fields& f) { f.integer("rank", rank, "", "columns of each adapter", 1, 1024); }
    bool operator==(const AdapterKeys&) const = default;
  };
  colossal::Program program = colossal::built_in();
  program.adapters.add({.table = "low_rank", .keys = AdapterKeys{}, .make = make_adapter});
  EXPECT_EQ(run::tables_of(program.adapters).size(), 2u);  // with that of the library
}

TEST(HeaderExamples, LowRankKeys) {
  const run::LowRankKeys keys{.kind = "lora", .rank = 8, .targets = {"q_proj", "v_proj"}};
  const double scale = keys.factor_of("model.layers.0.self_attn.q_proj");
  EXPECT_EQ(scale, 32. / 8);
}

TEST(HeaderExamples, StepRule) {
  class TwoUpdates : public train::StepRule {
    train::StepOutcome step(train::Engine& engine, const NextBatch& next) override {
      const tensor::Batch batch = next();
      train::update(engine, batch);
      return train::update(engine, batch);
    }
  };
  run::Program program = built_in();
  program.objectives.add({.name = "regression", .make = [](const auto&...) { return nullptr; }});
  program.objectives.at("regression").step_rule = [](train::Engine&, const run::Config&, const run::OwnTables&) {
    return std::make_unique<TwoUpdates>();
  };
  EXPECT_TRUE(program.objectives.at("regression").step_rule);
}

TEST(HeaderExamples, PromptLines) {
  const test::TemporaryFolder folder;
  const std::string text = R"(
    {"prompt": "To be", "max_tokens": 20, "temperature": 0.8, "stop": ["\n"], "id": "hamlet"}
  )";
  const std::string line = text.substr(text.find('{'), text.rfind('}') + 1 - text.find('{'));
  const auto lines = infer::read_prompts(folder.write("prompts.jsonl", line + "\n"), {});
  EXPECT_EQ(lines.at(0).options.max_tokens, 20);
  EXPECT_EQ(lines.at(0).options.stop, std::vector<std::string>{"\n"});
  EXPECT_EQ(lines.at(0).id, "hamlet");
}

TEST(HeaderExamples, RolloutRecords) {
  const test::TemporaryFolder folder;
  const RunFolder run(folder.path());
  const Log log = Log::silent();
  const nlohmann::json draws = {{"seed", 7}}, scores = {{"verifiers", {"exact"}}};
  const align::RolloutPrompt prompt{.index = 3, .ids = {1, 2}, .line = "{}"};
  const auto draw = [](const align::RolloutPrompt& of, int64_t number) {
    return align::RolloutAnswer{.prompt = of.index, .number = number, .finish_reason = "stop"};
  };
  const auto rate = [](const align::RolloutPrompt&, const align::RolloutAnswer&) { return align::Score{.value = 1}; };
  const align::RolloutRecords records(run.rollouts(), /*rank=*/0, log);
  align::RolloutStep step = records.open(12, {.draws = align::digest_of(draws), .scores = align::digest_of(scores)});
  step.begin(prompt);
  for (int64_t number = 0; number < 8; ++number) {
    if (!step.answer(3, number)) step.add(draw(prompt, number));
    const align::RolloutAnswer& answer = *step.answer(3, number);
    if (!step.score(3, number)) step.add(align::RolloutScore{3, number, rate(prompt, answer)});
  }
  records.remove_before(8);
  EXPECT_EQ(align::read_rollouts(run.rollouts(), 12).at(0).answers.size(), 8u);
}

[[maybe_unused]] void append_records() {
  using align::AppendedRecords, align::read_appended;
  AppendedRecords file("runs/a/rollouts/step-000012/start-0001-rank-00000.records");
  file.append("any bytes");
  read_appended(file.path(), [&](std::string_view record, int64_t byte) { std::puts(std::string(record).c_str()); });
}

}  // namespace

// This example is compiled, but not run.

double bandwidth_of(const std::vector<int>& ranks) { return 1e9 * static_cast<double>(ranks.size()); }

double step_events(const run::Config& config, const models::ModelShape& shape, double operations_per_second) {
  double seconds = 0;
  const StepEvents events = train::record_step({config, shape}, 5);
  for (const StepEvent& event : events.list)
    if (event.kind == StepEvent::Kind::Call)
      seconds += event.bytes / bandwidth_of(events.groups[event.group].ranks);
    else
      seconds += event.operations / operations_per_second;
  return seconds;
}

void suggest_recomputation(int64_t) {}
void draw_memory(int64_t, int64_t) {}

void step_memory(const run::Config& config, const models::ModelShape& shape, int64_t device_bytes) {
  const StepMemory memory = train::record_step({config, shape}, 5).memory;
  if (memory.peak_bytes > device_bytes) suggest_recomputation(memory.kinds.activations);
  for (const StepMemory::Point& point : memory.curve) draw_memory(point.event, point.kinds.device());
}

double record_step(const run::Config& config, const models::ModelShape& shape) {
  double bytes = 0;
  for (const StepEvent& event : train::record_step({config, shape}, 5).list)
    if (event.kind == StepEvent::Kind::Call) bytes += event.bytes;
  return bytes;
}

void memory_needs(const run::Config& config, const models::ModelShape& shape, comm::World& world, const Log& log) {
  const auto needs = train::memory_needs({config, shape}, world.rank());
  log.info("memory of this rank: ", train::to_string(needs));
  train::check_memory({config, shape}, at::kCPU, world.local_size());
}

void placed_model(const train::ConfiguredRun& run, const models::ModelShape& shape, const run::Objective& objective,
                  const std::shared_ptr<comm::Mesh>& mesh, const nn::Parameters::Options& options,
                  distributed::DistributedModel* main) {
  const run::Config& config = run.config;
  config.validate();
  train::check_sizes(config.parallel, shape, objective.example(1));
  const train::NamedModel& model = run.models.main();
  const std::shared_ptr<comm::Mesh> own = train::mesh_of(model, config.parallel, mesh);
  const auto placed = train::place_model(run, model, *mesh, *own, options, main->shared_parameters());
  train::ModelOnShapes rank_7(run, model, 7);
  rank_7.parameters();
}

void store_options(nn::Parameters& parameters, comm::Mesh& mesh, const run::Config& config) {
  const train::StoreOptions stored = train::store_options(config, parameters.options().dtype);
  memory::ChunkStore store(parameters, mesh, stored.chunks);
  parallel::GradientReducer reducer(store, stored.gradients);
}

double planned_shards(nn::Parameters& parameters, comm::Mesh& mesh, const memory::ChunkOptions& options,
                      const optim::OptimizerConfig& config) {
  train::PlannedShards planned = train::plan_shards(parameters, mesh, options, 1);
  const auto optimizer = optim::make_optimizer(config, planned.trained, {parameters, mesh, at::kMeta});
  planned.trained[0].bytes();
  return static_cast<double>(planned.trained.size());
}

void external_names(const std::string& folder, nn::Parameters& parameters, const models::ModelShape& shape) {
  checkpoint::import_weights(folder, parameters, run::external_names(shape));
}

double flops(train::Engine& engine, const tensor::Batch& batch, const at::Tensor& x, int64_t rows, int64_t out,
             int64_t in) {
  tensor::FlopCount count;
  engine.train_step(batch);
  count.total();
  tensor::announce_product(rows, out, in, x.scalar_type());
  return count.total();
}

double generation_defaults() {
  const infer::GenerationDefaults defaults = infer::read_generation_defaults("models/Qwen2.5-0.5B-Instruct");
  defaults.sampling.temperature;
  return defaults.sampling.temperature;
}

void engine(const run::SavedModel& saved, const std::vector<int64_t>& ids, std::vector<int64_t>& answer) {
  infer::Engine engine(*saved.model, {.cache_bytes = int64_t{1} << 30});
  engine.add({.prompt = ids, .end_ids = saved.end_ids, .options = {.max_tokens = 200}}, [&](const infer::Event& event) {
    if (event.is_answer()) answer.push_back(event.token);
  });
  while (engine.has_work()) engine.step();
}

bool answer_scores(const run::SavedModel& saved, const std::vector<int64_t>& prompt, const std::vector<int64_t>& yes,
                   const std::vector<int64_t>& no) {
  infer::Engine engine(*saved.model, {.block_tokens = 16});
  const std::vector<infer::AnswerScore> scores = infer::answer_scores(engine, {{prompt, yes}, {prompt, no}});
  const bool prefers_yes = scores[0].sum() > scores[1].sum();
  return prefers_yes;
}

bool text_scores(const run::SavedModel& saved, const std::vector<int64_t>& chosen,
                 const std::vector<int64_t>& rejected) {
  infer::TextScorer scorer(*saved.model, {});
  const std::vector<float> scores = scorer.score({chosen, rejected});
  const bool prefers_first = scores[0] > scores[1];
  return prefers_first;
}

std::vector<float> text_pool(const std::vector<at::Tensor>& chunks) {
  infer::TextPool pool(infer::Pooling::Mean, /*normalizes=*/true);
  for (const at::Tensor& chunk : chunks) pool.add(chunk);
  const std::vector<float> vector = pool.vector();
  return vector;
}

void request(infer::Engine& engine, const std::vector<int64_t>& ids, const std::vector<int64_t>& end_ids,
             std::vector<int64_t>& answer) {
  engine.add({.prompt = ids, .end_ids = end_ids, .options = {.max_tokens = 20}}, [&](const infer::Event& event) {
    if (event.is_answer()) answer.push_back(event.token);
  });
}

void generation_options(infer::Engine& engine, const infer::GenerationOptions& defaults,
                        const nlohmann::ordered_json& object, const std::vector<int64_t>& ids,
                        const std::vector<int64_t>& end_ids, const infer::OnEvent& on_event) {
  infer::GenerationOptions options = defaults;
  const auto given = read_json(object, options, "generate");
  options.check();
  engine.add({.prompt = ids, .end_ids = end_ids, .options = options}, on_event);
}

void prompt_lines(infer::Engine& engine, const text::Tokenizer& tokenizer, const infer::GenerationOptions& defaults,
                  const infer::OnEvent& on_event) {
  for (const infer::PromptLine& line : infer::read_prompts("prompts.jsonl", defaults))
    engine.add({.prompt = tokenizer.encode_prompt(line.prompt), .options = line.options}, on_event);
}

}  // namespace colossal::header_examples

namespace colossal::infer::header_examples {

at::Tensor runner(StepRunner& runner, Scheduler& scheduler) {
  const std::vector<Scheduler::ScheduledTokens> step = scheduler.next();
  const at::Tensor logits = runner.logits(scheduler, step);
  return logits;
}

at::Tensor lone_runner(distributed::DistributedModel& model, int64_t id, const std::vector<int64_t>& text,
                       int64_t max_new_tokens) {
  infer::LoneRunner runner(model);
  infer::Scheduler scheduler(LoneRunner::scheduling(runner.shape()));
  runner.begin(id, text, max_new_tokens);
  scheduler.add(id, text, max_new_tokens - 1);
  const at::Tensor logits = runner.logits(scheduler, scheduler.next());
  return logits;
}

}  // namespace colossal::infer::header_examples

namespace colossal::train::header_examples {

void run_models(comm::World& world, const run::Config& config, const models::ModelShape& policy) {
  comm::Mesh mesh(world, config.parallel.axes());
  const auto engine = train::initialize(
      mesh, config, {{.shape = policy}, {.name = "reference", .shape = policy, .adapter = nn::frozen()}});
  engine->zero_grad();
}

void module_tensors(comm::World& world, const run::Config& config) {
  train::ModuleTensors tensors;
  tensors.parameters.emplace_back("weight", at::zeros({4, 2}).requires_grad_());
  tensors.buffers.emplace_back("mean", at::zeros({4}));
  const auto training = colossal::initialize(world, tensors, config);
  training->zero_grad();
}

void first_values(comm::World& world, const run::Config& config, const train::ModuleTensors& tensors,
                  const std::string& folder, std::vector<at::Tensor> weights) {
  train::FirstValues values;
  values.replace = [&](size_t i, const at::Tensor& empty) { return weights[i] = empty; };
  values.weights = train::weights_at(folder);
  const auto training = colossal::initialize(world, tensors, config, {}, {}, values);
}

void gathered(train::ModuleTraining* training, const at::Tensor& weight, void (*my_kernel)(const float*)) {
  train::Gathered whole = training->gathered({{weight}});
  my_kernel(weight.const_data_ptr<float>());
  whole.end();
}

void whole_tensors(train::ModuleTraining* training, void (*print)(const std::string&, const at::Tensor&)) {
  train::WholeTensors tensors = training->named_tensors();
  while (const auto tensor = tensors.next()) print(tensor->name, tensor->value);
}

std::vector<Metric> step_reports(const models::Model& model, at::Device device, comm::Mesh& mesh, double loss_scale,
                                 int64_t micro_batches, std::vector<double> (*values_of)(std::vector<at::Tensor>)) {
  StepReports reports(model, device);
  reports.begin_step();
  reports.begin_pass(loss_scale / micro_batches);
  reports.end_pass(values_of(reports.numbers()), micro_batches);
  const std::vector<Metric> rows = reports.end_step(mesh.all(), /*skipped=*/false);
  return rows;
}

}  // namespace colossal::train::header_examples

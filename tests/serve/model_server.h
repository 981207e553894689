// A server with all routes over a tiny model with random weights, in this process. One rank steps the engine on a
// thread of its own, and a test may stop it between two steps.
#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "colossal/comm/run_ranks.h"
#include "colossal/http/client.h"
#include "colossal/http/server.h"
#include "colossal/infer/engine.h"
#include "colossal/run/saved_model.h"
#include "colossal/serve/embedding_work.h"
#include "colossal/serve/engine_loop.h"
#include "colossal/serve/routes.h"

namespace colossal::serve_test {

/// Stops an engine loop between its steps. The loop calls pass() as its poll; another thread calls the rest.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++steps_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return steps_ <= allowed_; });
  }
  /// Stops the loop after the step that it is in, and returns when it has stopped.
  void close() {
    std::unique_lock lock(mutex_);
    if (allowed_ == INT64_MAX) wait_for_step(lock, steps_);
  }
  /// Lets the stopped loop take its changes and run one step.
  void step() {
    std::unique_lock lock(mutex_);
    wait_for_step(lock, steps_);
  }
  void open() {
    const std::scoped_lock lock(mutex_);
    allowed_ = INT64_MAX;
    changed_.notify_all();
  }
  /// Returns the number of steps. An idle loop also counts, as it calls its poll.
  int64_t steps() const {
    const std::scoped_lock lock(mutex_);
    return steps_;
  }

 private:
  void wait_for_step(std::unique_lock<std::mutex>& lock, int64_t allowed) {
    allowed_ = allowed;
    changed_.notify_all();
    changed_.wait(lock, [this] { return steps_ > allowed_; });
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t steps_ = 0, allowed_ = INT64_MAX;
};

/// Passes work to a loop, and records its first tokens and its cancellations.
class ObservedReplica final : public serve::Replica {
 public:
  ObservedReplica(serve::Replica& replica, const Gate& gate) : replica_(replica), gate_(gate) {}

  std::optional<serve::Ticket> add(std::vector<serve::Generation> generations) override {
    for (serve::Generation& generation : generations)
      generation.on_event = [this, client = generation.client, has_begun = false,
                             pass_on = std::move(generation.on_event)](const infer::Event& event) mutable {
        if (event.is_answer() && !std::exchange(has_begun, true)) note_first_token(client);
        pass_on(event);
      };
    return replica_.add(std::move(generations));
  }
  std::optional<serve::Ticket> add(serve::Embedding embedding) override { return replica_.add(std::move(embedding)); }
  void prepare(const std::string& schema) override { replica_.prepare(schema); }
  void cancel(serve::Ticket ticket) override {
    replica_.cancel(ticket);
    ++cancellations_;
  }
  serve::ReplicaLoad load() const override { return replica_.load(); }

  int64_t cancellations() const { return cancellations_; }
  /// Returns the numbers of the steps with the first tokens of a client's requests, in order.
  std::vector<int64_t> first_tokens(const std::string& client) const {
    const std::scoped_lock lock(mutex_);
    const auto found = first_tokens_.find(client);
    return found == first_tokens_.end() ? std::vector<int64_t>() : found->second;
  }

 private:
  void note_first_token(const std::string& client) {
    const int64_t step = gate_.steps();
    const std::scoped_lock lock(mutex_);
    first_tokens_[client].push_back(step);
  }

  serve::Replica& replica_;
  const Gate& gate_;
  std::atomic<int64_t> cancellations_ = 0;
  mutable std::mutex mutex_;
  std::map<std::string, std::vector<int64_t>> first_tokens_;
};

struct ModelServerOptions {
  infer::EngineOptions engine{.cache_bytes = 1 << 20, .block_tokens = 16};
  http::ServerLimits limits{};
  std::vector<std::string> keys{};
  int64_t attention_sinks = -1;  ///< default of all requests; lets answers exceed the model's positions
  std::vector<run::AdapterChoice> adapters{};
  std::map<std::string, std::vector<int64_t>> adapter_end_ids{};
};

class ModelServer {
 public:
  /// `folder` has a model with the byte tokenizer (test::write_model).
  explicit ModelServer(const std::string& folder, ModelServerOptions options = {})
      : service(service_options(options)),
        server({.port = 0,
                .limits = options.limits,
                .keys = http::Keys(options.keys),
                .on_end = [this](const http::RequestEnd& end) { service.log_end(end); }},
               serve::routes(service)) {
    std::promise<void> ready;
    std::future<void> is_ready = ready.get_future();
    thread_ = std::thread([this, folder, options, own = std::move(ready)]() mutable {
      bool has_begun = false;
      try {
        comm::run_ranks(
            1, [&](comm::World& world) { run(world, folder, options, [&] { has_begun = true, own.set_value(); }); });
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
        if (!has_begun) own.set_exception(std::current_exception());
      }
    });
    try {
      is_ready.get();
    } catch (...) {
      thread_.join();
      throw;
    }
  }
  ~ModelServer() {
    gate.open();
    server.stop();
    loop_->end();
    thread_.join();
  }

  http::Client client(const std::string& key = "") const {
    return http::Client({.url = server.url(), .key = key, .timeout = 60});
  }
  serve::ReplicaLoad load() const { return loop_->load(); }
  /// Returns true if no request has work or blocks.
  bool is_idle() const {
    const serve::ReplicaLoad now = load();
    return now.waiting + now.running + now.blocks_used == 0;
  }
  ObservedReplica& replica() { return *replica_; }

  Gate gate;
  serve::Service service;
  http::Server server;

 private:
  static serve::ServiceOptions service_options(const ModelServerOptions& given) {
    serve::ServiceOptions options{.defaults = serve::request_defaults({}, {}), .limits = given.limits};
    options.defaults.options.attention_sinks = given.attention_sinks;
    options.has_keys = !given.keys.empty();
    return options;
  }

  template <class Ready>
  void run(comm::World& world, const std::string& folder, const ModelServerOptions& options, const Ready& ready) {
    const distributed::ParallelConfig layout;
    comm::Mesh mesh(world, layout.axes());
    const run::SavedModel saved =
        run::load_model(folder, mesh, layout, at::kCPU,
                        {.tokenizer = "bytes", .named_adapters = options.adapters, .packing = nn::WeightPacking{}});
    infer::SchemaCache schemas(*saved.tokenizer, saved.end_ids);
    infer::EngineOptions engine_options = options.engine;
    engine_options.adapters = saved.adapters;
    infer::Engine engine(*saved.model, engine_options);
    infer::Embedder embedder(*saved.model, {});
    serve::EngineLoop loop(world, mesh,
                           {.engine = &engine,
                            .embedder = &embedder,
                            .schemas = &schemas,
                            .end_ids = saved.end_ids,
                            .adapter_end_ids = options.adapter_end_ids,
                            .max_waiting = options.limits.max_waiting});
    loop_ = &loop;
    replica_.emplace(loop, gate);
    std::vector<serve::ServedAdapter> adapters;
    for (const std::string& name : saved.adapters) adapters.push_back({name});
    service.open(
        {.name = "tiny",
         .demands_name = !adapters.empty(),
         .adapters = adapters,
         .created = 1700000000,
         .tokenizer = saved.tokenizer.get(),
         .chat_template = &chat_template_,
         .schemas = &schemas,
         .max_length = engine.max_length(),
         .continues = true,
         .check_embedding = [&](const std::vector<int64_t>& ids) { serve::check_text(embedder, &engine, ids); }},
        *replica_);
    ready();
    loop.run([this] { gate.pass(); });
  }

  const text::ChatTemplate chat_template_{
      "{% if tools %}T{% endif %}{% for message in messages %}{{ message.content }};{% endfor %}"};
  serve::EngineLoop* loop_ = nullptr;
  std::optional<ObservedReplica> replica_;
  std::thread thread_;
};

}  // namespace colossal::serve_test

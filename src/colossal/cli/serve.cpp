#include <algorithm>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/held_stop_signals.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/serve_options.h"
#include "colossal/cli/serve_pictures.h"
#include "colossal/cli/server_front.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/part_of_world.h"
#include "colossal/infer/decoding/schema_cache.h"
#include "colossal/models/shape_parts.h"
#include "colossal/run/adapter_end_ids.h"
#include "colossal/serve/embedding_work.h"
#include "colossal/serve/engine_loop.h"
#include "colossal/serve/replicas/served_replicas.h"
#include "colossal/serve/service.h"

namespace colossal::cli {
namespace {

/// The objects that run the model of a rank.
struct ModelRunners {
  ModelRunners(const ServeOptions& options, const LoadedModel& loaded) {
    distributed::DistributedModel& model = *loaded.saved.model;
    if (options.task.continues()) {
      engine.emplace(model, loaded.engine(options.engine));
      schemas.emplace(*loaded.saved.tokenizer, loaded.saved.end_ids);
    }
    try {
      embedder.emplace(model, options.embedding);
    } catch (const Error& error) {  // the layout of a model that continues text may not allow embeddings
      if (!engine) throw;
      no_embeddings = error.message();
    }
  }

  std::optional<infer::Engine> engine{};
  std::optional<infer::SchemaCache> schemas{};
  std::optional<infer::Embedder> embedder{};
  std::string no_embeddings{};
};

/// Returns the maximum number of tokens of a text to embed that the model's folder names.
int64_t folder_length(const ServeOptions& options) {
  return options.embedding_tokens > 0 ? options.embedding_tokens : INT64_MAX;
}

/// Returns the maximum number of tokens of a text, for a model that only embeds.
int64_t embedding_length(const ServeOptions& options, const run::SavedModel& saved) {
  const int64_t positions = saved.model->model().shape.positions;
  return std::min({folder_length(options), positions, options.embedding.tokens_at_once});
}

serve::ServedModel served_model(const ServeOptions& options, const run::SavedModel& saved, ModelRunners& runners) {
  serve::ServedModel model{.name = options.name,
                           .demands_name = options.demands_name,
                           .created = static_cast<int64_t>(std::time(nullptr)),
                           .tokenizer = saved.tokenizer.get(),
                           .chat_template = options.chat_template ? &*options.chat_template : nullptr,
                           .schemas = runners.schemas ? &*runners.schemas : nullptr,
                           .max_length = runners.engine ? runners.engine->max_length()  //
                                                        : embedding_length(options, saved),
                           .even_length = saved.model->model().shape.part<models::LongTexts>().even_positions,
                           .continues = runners.engine.has_value(),
                           .no_embeddings = runners.no_embeddings,
                           .embedding_prompt = options.embedding_prompt};
  for (const SelectableAdapter& adapter : options.adapters)
    model.adapters.push_back({adapter.choice.name, adapter.chat_template ? &*adapter.chat_template : nullptr});
  if (!runners.embedder) return model;
  model.check_embedding = [&runners, length = folder_length(options)](const std::vector<int64_t>& text) {
    serve::check_text(*runners.embedder, runners.engine ? &*runners.engine : nullptr, text);
    const auto tokens = static_cast<int64_t>(text.size());
    require(tokens <= length, "embed", "a text must have at most ", length, " tokens: got ", tokens, "; shorten it");
  };
  return model;
}

std::string ready_line(const ServeOptions& options, const std::string& url, const run::SavedModel& saved,
                       const ModelRunners& runners) {
  std::string line = concat("ready at ", url, ": ", options.name, ", ");
  if (!options.adapters.empty())
    line += concat(options.adapters.size(), options.adapters.size() == 1 ? " adapter, " : " adapters, ");
  line += options.printed_ranks();
  if (!runners.engine) return line;
  const int64_t tokens = runners.engine->blocks() * options.engine.block_tokens * saved.model->cache_ranks();
  return line + concat(options.replicas > 1 ? ", each cache holds " : ", the cache holds ", tokens, " tokens");
}

/// Serves requests until a stop signal, on rank 0 of all replicas. Returns the exit status.
int answer_requests(const ServeOptions& options, ServerFront& front, const run::SavedModel& saved,
                    ModelRunners& runners, serve::ServedReplicas& replicas) {
  return front.serve_until_stopped({.open =
                                        [&] {
                                          front.service().open(served_model(options, saved, runners),
                                                               replicas.replica());
                                          say(ready_line(options, front.url(), saved, runners));
                                        },
                                    .run = [&](const std::function<void()>& poll) { replicas.run(poll); },
                                    .end = [&] { replicas.end(); }});
}

/// Returns the end tokens of the answers of adapters, by their names.
std::map<std::string, std::vector<int64_t>> adapter_end_ids(const ServeOptions& options, const run::SavedModel& saved) {
  std::map<std::string, std::vector<int64_t>> ids;
  if (options.model.tokenizer == "bytes") return ids;  // folders may have end tokens of another tokenizer
  for (const SelectableAdapter& adapter : options.adapters)
    ids[adapter.choice.name] = run::end_ids_of_adapter(adapter.choice.folder, *saved.tokenizer, saved.end_ids);
  return ids;
}

/// Packs the next of the weights that wait for their first use. Returns false if there is none.
bool load_next(const run::SavedModel& model) { return model.packed && model.packed->load_next(); }

int serve_as_rank(const ServeOptions& options, const run::Program* program) {
  ignore_broken_pipes();
  end_on_stop_signals();  // nothing is lost before the model is loaded
  const auto world = join_layout(options.model, options.replicas);
  say_stalls_of_work(*world);
  const bool is_first = world->rank() == 0;
  serve::check_replicas(*world, options.replicas, options.model.layout.ranks());
  comm::Mesh everyone(*world, {{"rank", world->size()}});
  std::unique_ptr<ServerFront> front;
  comm::agree(everyone.all(), at::kCPU, [&] {
    if (is_first) front = std::make_unique<ServerFront>(options);
  });
  comm::PartOfWorld part(*world, static_cast<int>(options.replicas));
  comm::Mesh mesh(part, options.model.layout.axes());
  run::Loading loading = options.model.loading();
  if (!options.task.continues()) {
    loading.packing.reset();
    loading.headless = true;
    loading.pooler = options.embedding.pooling == infer::Pooling::Pooler;
  }
  loading.packs_later = true;
  const serve::ModelAndDraft loaded =
      serve::load_with_draft(options.model, loading, mesh, options.model.layout, program);
  if (is_first) print_notices(loaded.model);
  std::optional<ModelRunners> runners;
  std::map<std::string, std::vector<int64_t>> end_ids_of_adapters;
  comm::agree(everyone.all(), at::kCPU, [&] {
    end_ids_of_adapters = adapter_end_ids(options, loaded.model);
    runners.emplace(options, LoadedModel{part, mesh, loaded.model, loaded.draft ? &*loaded.draft : nullptr});
    if (!is_first) ignore_stop_signals();  // before rank 0 waits for them
  });
  if (is_first) watch_stop_signals(world->size() > 1 ? SecondSignal::IsReported : SecondSignal::Ends);
  serve::EngineLoop loop(
      part, mesh,
      {.engine = runners->engine ? &*runners->engine : nullptr,
       .embedder = runners->embedder ? &*runners->embedder : nullptr,
       .schemas = runners->schemas ? &*runners->schemas : nullptr,
       .end_ids = loaded.model.end_ids,
       .adapter_end_ids = std::move(end_ids_of_adapters),
       .max_waiting = options.limits.max_waiting,
       .work_aside = [&] { return load_next(loaded.model) || (loaded.draft && load_next(*loaded.draft)); }});
  serve::ServedReplicas replicas(part, loop, options.limits.max_waiting);
  if (front) return answer_requests(options, *front, loaded.model, *runners, replicas);
  replicas.run({});
  return 0;
}

}  // namespace

int serve(const Arguments& arguments, const run::Program* program) {
  const HeldStopSignals held;  // until serve_as_rank(), also in the ranks that are started here
  const ServeOptions options = read_serve_options(arguments, program ? *program : run::built_in());
  return with_ranks(options.ranks(), "serve", arguments, [&] {
    return options.draws ? serve_pictures_as_rank(options, program) : serve_as_rank(options, program);
  });
}

}  // namespace colossal::cli

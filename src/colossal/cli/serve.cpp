#include <algorithm>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/held_stop_signals.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/serve_options.h"
#include "colossal/cli/serve_pictures.h"
#include "colossal/cli/serving_rank.h"
#include "colossal/infer/decoding/schema_cache.h"
#include "colossal/models/shape_parts.h"
#include "colossal/run/adapter_end_ids.h"
#include "colossal/serve/embedding_work.h"
#include "colossal/serve/engine_loop.h"
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

/// Returns what follows the name of the model in the line that says where it is served.
std::string served_summary(const ServeOptions& options, const run::SavedModel& saved, const ModelRunners& runners) {
  std::string line = ", ";
  if (!options.adapters.empty())
    line += concat(options.adapters.size(), options.adapters.size() == 1 ? " adapter, " : " adapters, ");
  line += options.printed_ranks();
  if (!runners.engine) return line;
  const int64_t tokens = runners.engine->blocks() * options.engine.block_tokens * saved.model->cache_ranks();
  return line + concat(options.replicas > 1 ? ", each cache holds " : ", the cache holds ", tokens, " tokens");
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

int serve_texts_as_rank(const ServeOptions& options, const run::Program* program) {
  ServingRank rank(options);
  run::Loading loading = options.model.loading();
  if (!options.task.continues()) {
    loading.packing.reset();
    loading.headless = true;
    loading.pooler = options.embedding.pooling == infer::Pooling::Pooler;
  }
  loading.packs_later = true;
  const serve::ModelAndDraft loaded = rank.load(loading, program);
  std::optional<ModelRunners> runners;
  std::map<std::string, std::vector<int64_t>> end_ids_of_adapters;
  rank.make_ready([&] {
    end_ids_of_adapters = adapter_end_ids(options, loaded.model);
    runners.emplace(options,
                    LoadedModel{rank.part(), rank.mesh(), loaded.model, loaded.draft ? &*loaded.draft : nullptr});
  });
  serve::EngineLoop loop(
      rank.part(), rank.mesh(),
      {.engine = runners->engine ? &*runners->engine : nullptr,
       .embedder = runners->embedder ? &*runners->embedder : nullptr,
       .schemas = runners->schemas ? &*runners->schemas : nullptr,
       .end_ids = loaded.model.end_ids,
       .adapter_end_ids = std::move(end_ids_of_adapters),
       .max_waiting = options.limits.max_waiting,
       .work_aside = [&] { return load_next(loaded.model) || (loaded.draft && load_next(*loaded.draft)); }});
  return rank.serve(loop, served_model(options, loaded.model, *runners),
                    served_summary(options, loaded.model, *runners));
}

}  // namespace

int serve(const Arguments& arguments, const run::Program* program) {
  const HeldStopSignals held;  // until ServingRank, also in the ranks that are started here
  const ServeOptions options = read_serve_options(arguments, program ? *program : run::built_in());
  return with_ranks(options.ranks(), "serve", arguments, [&] {
    return options.draws ? serve_pictures_as_rank(options, program) : serve_texts_as_rank(options, program);
  });
}

}  // namespace colossal::cli

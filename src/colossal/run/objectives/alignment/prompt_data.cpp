#include "colossal/run/objectives/alignment/prompt_data.h"

#include <memory>
#include <mutex>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/data/chats/chat_stream.h"
#include "colossal/run/objectives/alignment/chat_data.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {
namespace {

using CheckLine = std::function<void(const text::PromptLine&)>;

/// Returns a check that several threads may call, because verifiers are not safe for that.
CheckLine one_at_a_time(const CheckLine& check) {
  if (!check) return {};
  return [check, mutex = std::make_shared<std::mutex>()](const text::PromptLine& line) {
    const std::lock_guard lock(*mutex);
    check(line);
  };
}

}  // namespace

void check_prompt_keys(const Config& config, const ChatKeys& keys) {
  check_chat_keys(config, keys);
  const std::string answers = "a method that trains on answers of the data";
  refuse_unused_data_keys(keys, {{"answers", false, answers},
                                 {"packing", false, answers},
                                 {"too_long", false, answers + " (long prompts are treated as data.on_error says)"}});
  DataConfig common = config.data;
  common.own = {};
  refuse_unused_keys(
      "data", describe_config(common), describe_config(DataConfig()),
      {{"held_out", config.data.held_out == 0, "a method with a held-out loss (training.tasks evaluates others)"}});
}

OpenedData open_prompts(const DataRequest& request, const ChatKeys& keys, int64_t prompts, int64_t max_tokens,
                        const CheckLine& check_line) {
  const Config& config = request.config;
  const int64_t sequence = config.data.sequence;
  require(prompts >= 1 && max_tokens >= 1, "rollout", "prompts and max_tokens must be at least 1: got ", prompts,
          " and ", max_tokens);
  require(max_tokens < sequence, "rollout", "max_tokens must leave room for a prompt in data.sequence = ", sequence,
          " tokens: got ", max_tokens, "; raise data.sequence or lower rollout.max_tokens");
  OpenedData data;
  const auto [sources, encoder] = open_chat_sources(request, keys, data);
  data::ChatStreamOptions options{.batch_size = prompts,
                                  .rules = {.samples = data::ChatSamples::Prompts,
                                            .sequence = sequence,
                                            .max_tokens = max_tokens,
                                            .check_line = one_at_a_time(check_line)},
                                  .threads = static_cast<int>(config.data.threads),
                                  .records = chat_records(config, keys)};
  options.records.held_out = 0;
  options.records.part = data::Part::All;
  data.end_ids = data::check_first_chats(sources, *encoder, options, data.notices);
  data.stream = std::make_unique<data::ChatStream>(sources, encoder, std::move(options));
  return data;
}

}  // namespace colossal::run

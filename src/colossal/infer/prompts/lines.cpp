#include "colossal/infer/prompts/lines.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/infer/decoding/schema_cache.h"
#include "colossal/text/unicode.h"

namespace colossal::infer {
namespace {

using nlohmann::ordered_json;

void read_object(const std::string& text, PromptLine& line) {
  ordered_json object = parse_ordered_json(text, "the line", "generate");
  require(object.is_object() && object.contains("prompt") && object["prompt"].is_string(), "generate",
          "a line must be an object with a string \"prompt\": got ", text.substr(0, 80));
  line.prompt = object["prompt"];
  if (object.contains("id")) line.id = object["id"];
  object.erase("prompt");
  object.erase("id");
  const std::vector<std::string> given = read_json(object, line.options, "generate");
  GenerationOptions own = line.options;
  // The schema in `common` was checked before; parsing it again for each line would take longer than everything else.
  if (std::find(given.begin(), given.end(), "json_schema") == given.end()) own.json_schema.clear();
  own.check();
}

const char* name_of(FinishReason finish_reason) {
  switch (finish_reason) {
    case FinishReason::AtEnd:
      return "end";
    case FinishReason::AtPositions:
      return "positions";
    case FinishReason::AtStop:
      return "stop";
    case FinishReason::Failed:
    case FinishReason::EngineEnded:
      return "error";
    default:
      return "length";
  }
}

/// A token with its log-probability, as lines print it.
struct ListedToken {
  int64_t id = 0;
  std::string piece{};
  std::optional<double> logprob{};  ///< no value = nothing predicts the token

  void fields(Fields& f) { f.member("id", id), f.member("piece", piece), f.member("logprob", logprob); }
};

/// A token of a text with the most probable ones in its place.
struct ReportedToken : ListedToken {
  std::vector<ListedToken> best{};

  void fields(Fields& f) { ListedToken::fields(f), f.member("best", best); }
};

/// Returns the text of a token; "" for ids that only the model has, because its vocabulary may be larger than the
/// tokenizer's.
std::string piece_of(const text::Tokenizer& tokenizer, int64_t id) {
  return id < tokenizer.vocabulary_size() ? text::valid_utf8(tokenizer.piece(id)) : "";
}

}  // namespace

std::vector<PromptLine> read_prompts(const std::string& path, const GenerationOptions& common) {
  std::ifstream file(path);
  std::error_code failed;
  require(file.good() && !std::filesystem::is_directory(path, failed), "generate",
          "cannot read the file of prompts: ", printable(path),  // it may be a long prompt
          "; --prompts takes the path of a file, --prompt a text");
  const bool is_json = has_ending(path, ".jsonl");
  std::vector<PromptLine> prompts;
  int64_t number = 1;
  for (std::string text; std::getline(file, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      require(text::is_utf8(text), "generate", "a prompt must be UTF-8");
      PromptLine line{.prompt = is_json ? "" : text, .options = common};
      line.options.sampling.seed = static_cast<int64_t>(static_cast<uint64_t>(common.sampling.seed) + prompts.size());
      if (is_json) read_object(text, line);
      prompts.push_back(std::move(line));
    } catch (const Error& error) {
      throw Error("generate", concat(path, " line ", number, ": ", error.message()));
    }
  }
  require(!prompts.empty(), "generate", "the file of prompts is empty: ", path);
  return prompts;
}

PromptAnswers::PromptAnswers(Engine& engine, const text::Tokenizer& tokenizer, const std::vector<int64_t>& end_ids,
                             const std::vector<PromptLine>& lines)
    : engine_(engine), tokenizer_(tokenizer), lines_(lines) {
  SchemaCache schemas(tokenizer, end_ids);
  answers_.reserve(lines.size());  // requests refer to their answers
  for (const PromptLine& line : lines) {
    Request request{.prompt = tokenizer.encode_prompt(line.prompt),
                    .end_ids = end_ids,
                    .options = line.options,
                    .constraint = schemas.constraint(line.options.json_schema)};
    try {
      Answer& answer = answers_.emplace_back(Answer{-1, {tokenizer, line.options.stop}, request.prompt});
      answer.id = engine.add(std::move(request), [this, &answer](const Event& event) { hear(event, answer); });
      const int64_t first = answer.prompt.front();
      answer.prompt_log_probabilities.push_back(to_json_object(ReportedToken{{first, piece_of(tokenizer, first)}}));
    } catch (const Error& error) {
      for (const Answer& answer : answers_) engine.drop(answer.id);
      throw Error(error.component(), concat("prompt ", answers_.size(), ": ", error.message()));
    }
  }
}

PromptAnswers::~PromptAnswers() {
  for (const Answer& answer : answers_) engine_.drop(answer.id);
}

ordered_json PromptAnswers::json_of(const LogProbabilities& reported, int64_t token) const {
  ReportedToken listed{{token, piece_of(tokenizer_, token), reported.own}};
  for (const auto& [id, logarithm] : reported.best) listed.best.push_back({id, piece_of(tokenizer_, id), logarithm});
  return to_json_object(std::move(listed));
}

void PromptAnswers::hear(const Event& event, Answer& answer) const {
  if (event.is_answer()) {
    ++answer.tokens;
    answer.text += answer.stream.push(event.token);
    if (event.log_probabilities) answer.log_probabilities.push_back(json_of(*event.log_probabilities, event.token));
  }
  for (const LogProbabilities& reported : event.prompt_log_probabilities) {
    const size_t next = answer.prompt_log_probabilities.size();
    answer.prompt_log_probabilities.push_back(json_of(reported, answer.prompt[next]));
  }
  answer.finish_reason = event.finish_reason;
  answer.error = event.error;
  if (event.finish_reason != FinishReason::None) answer.text += answer.stream.finish();
  if (!answer.stream.is_stopped()) return;
  answer.finish_reason = FinishReason::AtStop;
  engine_.drop(event.id);
}

std::string PromptAnswers::line_of(const Answer& answer, const PromptLine& line) const {
  ordered_json object;
  if (!line.id.is_null()) object["id"] = line.id;
  object["prompt"] = line.prompt, object["text"] = answer.text;
  object["ended"] = name_of(answer.finish_reason), object["tokens"] = answer.tokens;
  if (answer.finish_reason == FinishReason::Failed) object["error"] = answer.error;
  if (line.options.logprobs >= 0) object["logprobs"] = answer.log_probabilities;
  if (line.options.prompt_logprobs >= 0) object["prompt_logprobs"] = answer.prompt_log_probabilities;
  return json_line(object);
}

void PromptAnswers::run(const std::function<void(const std::string& line)>& emit) {
  for (size_t next = 0; next < answers_.size();) {
    engine_.step();
    for (; next < answers_.size() && answers_[next].finish_reason != FinishReason::None; ++next)
      emit(line_of(answers_[next], lines_[next]));
  }
}

int64_t PromptAnswers::tokens() const {
  int64_t tokens = 0;
  for (const Answer& answer : answers_) tokens += answer.tokens;
  return tokens;
}

int64_t PromptAnswers::failed() const {
  return std::count_if(answers_.begin(), answers_.end(),
                       [](const Answer& answer) { return answer.finish_reason == FinishReason::Failed; });
}

}  // namespace colossal::infer

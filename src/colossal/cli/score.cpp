#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/model_options.h"
#include "colossal/cli/text_lines.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/world.h"
#include "colossal/data/chats/chat_encoder.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/infer/text_scorer.h"

namespace colossal::cli {
namespace {

constexpr size_t kScoredLines = 512, kScoredBytes = 8 << 20;  // maximum lines and bytes in memory

struct ScoreRequest {
  ModelOptions model;
  std::string input, chat_template;
  infer::EngineOptions engine;

  bool reads_standard_input() const { return input.empty() || input == "-"; }
  std::string name() const { return reads_standard_input() ? "standard input" : input; }
};

/// Scores lines, some at a time, and prints them.
class LineScorer {
 public:
  LineScorer(const ScoreRequest& request, const LoadedModel& loaded)
      : name_(request.name()),
        prints_(loaded.speaks()),
        encoder_(std::shared_ptr<const text::Tokenizer>(std::shared_ptr<void>(), loaded.saved.tokenizer.get()),
                 request.model.chat_template(request.chat_template),
                 {.answers = data::Answers::Last,
                  .end_ids = loaded.saved.end_ids,
                  .vocabulary = loaded.saved.model->model().shape.vocabulary}),
        scorer_(*loaded.saved.model, loaded.engine(request.engine)) {}

  void take(NumberedLine line) {
    if (data::is_blank(line.text)) return;
    held_ += line.text.size();
    lines_.push_back(std::move(line));
    if (lines_.size() == kScoredLines || held_ >= kScoredBytes) score_held();
  }

  void finish() {
    score_held();
    if (prints_ && pairs_ > 0)
      say(concat(pairs_, pairs_ == 1 ? " pair, " : " pairs, ",
                 fixed_text(100.0 * static_cast<double>(right_) / static_cast<double>(pairs_), 1),
                 " % of them with the higher score for the chosen answer"));
  }

 private:
  struct Encoded {
    data::ChatKind kind;
    std::vector<std::vector<int64_t>> texts;
  };

  Encoded encoded(const NumberedLine& line) const {
    const data::ChatLine chat = data::chat_line_of(data::parse_ordered_json_line(line.text, name_, line.number),
                                                   concat(name_, ":", line.number));
    Encoded result{chat.kind, {}};
    for (data::LabelledTokens& tokens : encoder_.encode(chat).texts) {
      try {
        scorer_.check(tokens.ids);
      } catch (const Error& error) {
        throw Error("score", concat(chat.place, ": ", error.message()));
      }
      result.texts.push_back(std::move(tokens.ids));
    }
    return result;
  }

  void score_held() {
    std::vector<Encoded> encoded_lines(lines_.size());
    text::for_each_index(lines_.size(), at::get_num_threads(),
                         [&](size_t i) { encoded_lines[i] = encoded(lines_[i]); });
    std::vector<std::vector<int64_t>> texts;
    for (const Encoded& line : encoded_lines) texts.insert(texts.end(), line.texts.begin(), line.texts.end());
    const std::vector<float> scores = scorer_.score(texts);
    const float* next = scores.data();
    for (size_t i = 0; i < lines_.size(); ++i) {
      print(lines_[i].number, encoded_lines[i].kind, {next, next + encoded_lines[i].texts.size()});
      next += encoded_lines[i].texts.size();
    }
    if (prints_) std::fflush(stdout);
    lines_.clear();
    held_ = 0;
  }

  void print(int64_t number, data::ChatKind kind, const std::vector<float>& scores) {
    std::vector<double> values;
    for (const float score : scores) values.push_back(shortest_double(score));
    nlohmann::ordered_json line{{"line", number}};
    if (kind == data::ChatKind::Pair) {
      line["chosen"] = values[0];
      line["rejected"] = values[1];
      ++pairs_;
      if (scores[0] > scores[1]) ++right_;
    } else if (kind == data::ChatKind::Ranking) {
      line["scores"] = values;
    } else {
      line["score"] = values[0];
    }
    if (prints_) std::puts(json_line(line).c_str());
  }

  std::string name_;
  bool prints_;
  data::ChatEncoder encoder_;
  infer::TextScorer scorer_;
  std::vector<NumberedLine> lines_;
  size_t held_ = 0;
  int64_t pairs_ = 0, right_ = 0;
};

int score_as_rank(const ScoreRequest& request, const LoadedModel& loaded) {
  LineScorer scorer(request, loaded);
  std::ifstream file;
  if (!request.reads_standard_input()) {
    file.open(request.input, std::ios::binary);
    require(file.good() && !std::filesystem::is_directory(request.input), "score", "cannot read ", request.input);
  }
  std::istream& in = request.reads_standard_input() ? std::cin : file;
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) scorer.take({++number, std::move(line)});
  require(!in.bad(), "score", "cannot read ", request.name(), " to its end");
  scorer.finish();
  return 0;
}

}  // namespace

int score(const Arguments& arguments, const run::Program* program) {
  CLI::App app(
      "Prints the scores of a reward model as JSON, one line for each line of the input: {\"line\", \"chosen\", "
      "\"rejected\"} for a pair, {\"line\", \"scores\"} for a ranking, {\"line\", \"score\"} for a chat, a completion "
      "or "
      "a text.",
      "colossal score");
  ScoreRequest r;
  add_model_options(app, r.model);
  app.add_option("--input", r.input,
                 "JSON lines in any form of the training data (docs/reference/data.md); default, or -: standard input");
  app.add_option("--chat-template", r.chat_template,
                 "Jinja file that renders messages; default: that of the adapters or of the model");
  add_size(app, "--kv-cache", r.engine.cache_bytes, "size of the KV cache per rank; default: 1GiB");
  app.add_option("--step-tokens", r.engine.step_tokens, "maximum number of tokens per step, over all texts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  parse(app, arguments);
  check_text_model_options(app, r.model, "score");
  const bool is_alone = r.model.layout.ranks() == 1;
  require(is_alone || !r.reads_standard_input(), "score",
          "several ranks cannot read standard input; name a file with --input");
  if (!is_alone) require_regular_file(r.input, "score", "several ranks read it");
  return with_ranks(r.model.layout.ranks(), "score", arguments, [&] {
    const auto world = join_layout(r.model);
    comm::Mesh mesh(*world, r.model.layout.axes());
    run::Loading loading = r.model.loading();
    loading.scores = true;
    const serve::ModelAndDraft loaded = serve::load_with_draft(r.model, loading, mesh, r.model.layout, program);
    if (world->rank() == 0) print_notices(loaded.model);
    return score_as_rank(r, {*world, mesh, loaded.model});
  });
}

}  // namespace colossal::cli

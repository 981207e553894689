#include "colossal/evaluate/items.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/evaluate/records.h"
#include "colossal/text/template.h"

namespace colossal::evaluate {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// A line as its templates render it.
struct RenderedLine {
  int64_t line;
  std::string prompt;
  std::vector<std::string> texts;
  size_t right;
  std::string counted;
};

std::string text_of_value(const ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::vector<std::string> texts_of(const ordered_json& list) {
  std::vector<std::string> texts;
  for (const ordered_json& value : list) texts.push_back(text_of_value(value));
  return texts;
}

/// The templates of a task.
class Templates {
 public:
  explicit Templates(const Task& task)
      : task_(task),
        prompt_(of(task.prompt, "prompt")),
        target_(of(task.target, "target")),
        counted_(of(task.counted, "counted")),
        description_(of(task.description, "description")) {
    for (const std::string& choice : task.choices) choices_.push_back(of(choice, "choices"));
  }

  std::string file(const std::string& name, const ordered_json& subject) const {
    return of(name, "data").render(subject);
  }
  std::string description(const ordered_json& subject) const { return description_.render(subject); }

  /// Renders a line. Errors: those of read_parts(), with `path` and the number of the line.
  RenderedLine line(const Record& record, const ordered_json& subject, const std::string& path) const {
    ordered_json members = record.members;
    members.update(subject);
    try {
      RenderedLine made{record.line, prompt_.render(members), {}, 0, counted_.render(members)};
      const ordered_json target = target_.value(members);
      if (task_.is_choices()) {
        made.texts = choices(members);
        made.right = right_of(target, made.texts);
      } else {
        made.texts = target.is_array() ? texts_of(target) : std::vector<std::string>{target_.render(members)};
        require(!made.texts.empty(), "evaluate", "a target must have at least one right answer: got an empty list");
      }
      return made;
    } catch (const Error& error) {
      throw Error("evaluate", concat(path, ":", record.line, ": ", error.message()));
    }
  }

 private:
  text::Template of(const std::string& source, const char* key) const {
    return text::Template(source, concat(task_.where, ", ", key));
  }

  std::vector<std::string> choices(const ordered_json& members) const {
    std::vector<std::string> made;
    if (choices_.size() == 1) {
      const ordered_json list = choices_[0].value(members);
      require(list.is_array(), "evaluate", "choices must be a list: got ", printable(list.dump()),
              "; write one {{ }} that yields a list, or a list of templates");
      made = texts_of(list);
    } else {
      for (const text::Template& choice : choices_) made.push_back(choice.render(members));
    }
    require(made.size() > 1, "evaluate", "choices must be at least two: got ", made.size());
    return made;
  }

  /// Returns the index of the right choice: the target is its text or its index.
  static size_t right_of(const ordered_json& target, const std::vector<std::string>& choices) {
    std::optional<int64_t> index;
    if (target.is_number_integer()) {
      index = target.get<int64_t>();
    } else {
      const std::string text = text_of_value(target);
      const auto found = std::find(choices.begin(), choices.end(), text);
      index = found != choices.end() ? found - choices.begin() : parse_id(text);
    }
    const bool is_choice = index && *index >= 0 && *index < static_cast<int64_t>(choices.size());
    require(is_choice, "evaluate", "a target must be the text of a choice or its index, 0 to ", choices.size() - 1,
            ": got ", printable(target.dump()), " for ", printable(ordered_json(choices).dump()));
    return static_cast<size_t>(*index);
  }

  const Task& task_;
  text::Template prompt_, target_, counted_, description_;
  std::vector<text::Template> choices_;
};

/// A reader of the parts of a task.
class PartReader {
 public:
  PartReader(const Task& task, const DataOptions& options)
      : task_(task), options_(options), templates_(task), shots_(options.shots < 0 ? task.shots : options.shots) {
    const bool is_file = fs::path(task.where).extension() == ".toml";
    require(!options.data.empty() || is_file, "evaluate", task.name, " needs the folder of its data: got none; set ",
            "--data");
    folder_ = options.data.empty() ? fs::path(task.where).parent_path() : fs::path(options.data);
    if (task.is_perplexity()) shots_ = 0;
  }

  Part read(const std::string& subject, const std::string& name) const {
    ordered_json variables = ordered_json::object();
    if (!subject.empty()) variables = {{"subject", subject}, {"subject_name", name}};
    const bool is_own = task_.shots_data.empty();  // shots are other lines of the data
    const std::string path = path_of(task_.data, variables);
    // One line more than the shots replaces the item's own line.
    const int64_t needed = is_own && shots_ > 0 ? std::max(options_.limit, shots_ + 1) : options_.limit;
    const auto lines = lines_of(path, options_.limit > 0 ? needed : 0, variables);
    std::vector<RenderedLine> examples;
    const std::string shots_path = is_own || shots_ == 0 ? path : path_of(task_.shots_data, variables);
    if (shots_ > 0 && !is_own) examples = lines_of(shots_path, shots_, variables);
    const std::vector<RenderedLine>& shown = is_own ? lines : examples;
    require(shots_ == 0 || static_cast<int64_t>(shown.size()) >= shots_ + is_own, "evaluate", shots_path,
            ": must have ", shots_ + is_own, " lines for ", shots_, " shots: got ", shown.size(), "; lower --shots");
    Part part{subject, {}};
    const std::string description = templates_.description(variables);
    for (size_t i = 0; i < lines.size() && (options_.limit == 0 || static_cast<int64_t>(i) < options_.limit); ++i) {
      std::vector<const RenderedLine*> shots;
      for (size_t j = 0; static_cast<int64_t>(shots.size()) < shots_; ++j)
        if (!is_own || j != i) shots.push_back(&shown[j]);
      const RenderedLine& line = lines[i];
      part.items.push_back({line.line, prompt_of(line, shots, description, path), line.texts, line.right,
                            line.counted.empty() && task_.counted.empty() ? line.texts[0] : line.counted});
    }
    return part;
  }

 private:
  std::string path_of(const std::string& name, const ordered_json& variables) const {
    const std::string path = (folder_ / templates_.file(name, variables)).string();
    std::error_code failed;
    require(fs::exists(path, failed), "evaluate", "no data for ", task_.name, ": ", path, " does not exist",
            task_.publisher.empty() ? "" : "; get it from ", task_.publisher,
            task_.subjects.size() > 1
                ? concat(", or name single subjects, such as ", task_.name, "_", task_.subjects.begin()->first)
                : "");
    return path;
  }

  std::vector<RenderedLine> lines_of(const std::string& path, int64_t limit, const ordered_json& variables) const {
    std::vector<RenderedLine> lines;
    for (const Record& record : read_records(path, task_.columns, limit))
      lines.push_back(templates_.line(record, variables, path));
    return lines;
  }

  std::string answer_of(const RenderedLine& line) const { return line.texts[task_.is_choices() ? line.right : 0]; }

  std::string prompt_of(const RenderedLine& line, const std::vector<const RenderedLine*>& shots,
                        const std::string& description, const std::string& path) const {
    if (task_.is_perplexity()) return "";
    if (options_.chat_template) return chat_of(line, shots, description, path);
    std::string text = description;
    for (const RenderedLine* shot : shots) text += shot->prompt + task_.delimiter + answer_of(*shot) + task_.separator;
    return text + line.prompt;
  }

  std::string chat_of(const RenderedLine& line, const std::vector<const RenderedLine*>& shots,
                      const std::string& description, const std::string& path) const {
    text::Chat chat;
    const auto add = [&](const char* role, const std::string& content) {
      chat.messages.push_back({{"role", role}, {"content", content}});
    };
    if (!description.empty()) add("system", description);
    for (const RenderedLine* shot : shots) add("user", shot->prompt), add("assistant", answer_of(*shot));
    add("user", line.prompt);
    chat.add_generation_prompt = true;
    try {
      return options_.chat_template->render(chat).text;
    } catch (const Error& error) {
      throw Error("evaluate", concat(path, ":", line.line, ": ", error.message()));
    }
  }

  const Task& task_;
  const DataOptions& options_;
  Templates templates_;
  fs::path folder_;
  int64_t shots_;
};

}  // namespace

std::vector<Part> read_parts(const Task& task, const DataOptions& options) {
  const PartReader reader(task, options);
  std::vector<Part> parts;
  if (task.subjects.empty()) parts.push_back(reader.read("", ""));
  for (const auto& [subject, name] : task.subjects) parts.push_back(reader.read(subject, name));
  return parts;
}

}  // namespace colossal::evaluate

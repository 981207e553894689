#include "colossal/data/streams/source_records.h"

#include <map>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/data/streams/record_lines.h"

namespace colossal::data {
namespace {

/// Returns a checksum that differs if the tokenizer has other tokens or splits text in another way.
std::string checksum_of(const text::Tokenizer& tokenizer) {
  constexpr const char* kText =
      "The 3 quick  brown\tfoxes' 1,234.5 jumps\n\n  don't_stop; na\xc3\xafve \xe4\xbd\xa0\xe5\xa5\xbd "
      "\xf0\x9f\x99\x82 int main() { return x->y != 0xFF; }";
  Checksum sum;
  for (int64_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    const std::string token = tokenizer.spelling(id) + "\n";
    sum.update(token.data(), token.size());
  }
  const std::vector<int64_t> tokens = tokenizer.encode(kText);
  sum.update(tokens.data(), tokens.size() * sizeof(int64_t));
  return "checksum " + sum.hex().substr(0, 16);
}

}  // namespace

nlohmann::json stream_traits(const std::vector<StreamSource>& sources, const text::Tokenizer& tokenizer,
                             const RecordOptions& options) {
  nlohmann::json each = nlohmann::json::object();
  for (const StreamSource& source : sources)
    each[source.name] = {{"weight", source.weight}, {"files", source.contents()}};
  return {{"sources", each},
          {"held_out", options.held_out},
          {"shuffle_bytes", options.shuffle ? options.shuffle_bytes : 0},
          {"longest_line", options.max_line_bytes},
          {"tokenizer", checksum_of(tokenizer)},
          {"end_id", tokenizer.end_id()},
          {"vocabulary", tokenizer.vocabulary_size()},
          {"seed", options.seed}};
}

void for_first_lines(const std::vector<StreamSource>& sources, const RecordOptions& options,
                     const std::function<bool(const Record&)>& use) {
  for (const StreamSource& source : sources) {
    const auto path = std::make_shared<const std::string>(source.paths.front());
    const auto lines = RecordLines::open(*path, options.max_line_bytes, {}, options.columns);
    Record record{.path = path};
    while (lines->next(record.line) && !lines->is_cut()) {
      ++record.number;
      if (!is_blank(record.line) && !use(record)) break;
    }
  }
}

void read_held_out_records(const std::vector<StreamSource>& sources, RecordOptions options, const HeldOutReader& reader,
                           std::vector<std::string>& notices) {
  options.part = Part::HeldOut;
  options.shuffle = false;
  double sum = 0;
  std::map<std::string, const StreamSource*> by_name;  // makes the text independent of the order of `sources`
  for (const StreamSource& source : sources) sum += source.weight, by_name[source.name] = &source;
  SkippedRecords skipped_records;
  for (const auto& [name, source] : by_name) {
    RecordSource records(source->paths, source->names, options);
    reader.begin(*source, sum);
    while (reader.wants_more() && !records.at_end()) {
      try {
        reader.read(records.next());
      } catch (const Error& error) {
        if (options.on_error == OnError::Refuse) throw;
        skipped_records.add(error.message());
      }
    }
    for (const std::string& fault : records.take_faults()) skipped_records.add(fault);
  }
  for (const std::string& notice : skipped_records.take_notices()) notices.push_back("held out: " + notice);
}

}  // namespace colossal::data

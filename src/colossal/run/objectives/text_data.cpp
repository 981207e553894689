#include "colossal/run/objectives/text_data.h"

#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/data/streams/document_stream.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/data/texts/samples.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {
namespace {

data::Documents documents_of(const DataConfig& d) {
  return d.documents == "joined" ? data::Documents::Joined : data::Documents::Separate;
}

std::shared_ptr<const data::Samples> samples_of(const data::Corpus& corpus, const DataConfig& d,
                                                const std::optional<data::Masking>& masking) {
  if (!masking) return std::make_shared<data::TextSamples>(corpus, d.sequence, documents_of(d));
  return std::make_shared<data::MaskedSamples>(corpus, d.sequence, documents_of(d), *masking);
}

OpenedData open_stream(const DataRequest& request, const StreamKeys& keys,
                       const std::optional<data::Masking>& masking) {
  const Config& config = request.config;
  const DataConfig& d = config.data;
  const bool holds_out = evaluates(config) && d.held_out > 0;
  const tensor::ReplicaRows rows = config.replica_rows(request.replica);
  data::DocumentStreamOptions options{.batch_size = rows.batch_size,
                                      .rank = static_cast<int>(rows.replica),
                                      .ranks = static_cast<int>(rows.replicas),
                                      .micro_batches = rows.micro_batches,
                                      .sequence = d.sequence,
                                      .documents = documents_of(d),
                                      .masking = masking,
                                      .columns = d.text_columns,
                                      .threads = static_cast<int>(d.threads),
                                      .records = {.seed = static_cast<uint64_t>(config.training.seed),
                                                  .shuffle = keys.shuffle_bytes > 0,
                                                  .shuffle_bytes = keys.shuffle_bytes,
                                                  .max_line_bytes = d.max_line_bytes,
                                                  .held_out = d.held_out,
                                                  .part = data::Part::Training,
                                                  .on_error = on_error_of(d)}};
  const std::vector<data::StreamSource> sources = sources_of(d, keys);
  data::check_first_records(sources, options);
  OpenedData parts;
  if (holds_out) {
    const int64_t tokens = config.training.evaluate_batches * config.training.batch_size * d.sequence + 1;
    const auto corpus = data::read_held_out(sources, *request.tokenizer, options, tokens, parts.notices);
    require(corpus.size() > d.sequence, "data", "the held-out part must hold a sequence: got ", corpus.size(),
            " tokens, sequence ", d.sequence, ", because the data are too short for data.held_out = ", d.held_out,
            "; add records, raise data.held_out, lower data.sequence, or set training.evaluate_batches = 0");
    parts.held_out = samples_of(corpus, d, masking);
  }
  for (const data::StreamSource& source : sources)
    if (source.left_out) parts.notices.push_back(*source.left_out);
  parts.stream = std::make_unique<data::DocumentStream>(sources, request.tokenizer, std::move(options));
  return parts;
}

OpenedData open_corpus(const DataRequest& request, const std::optional<data::Masking>& masking) {
  const DataConfig& d = request.config.data;
  const auto [training, held_out, notices, is_builtin] = open_plain_text(request);
  OpenedData parts{.training = samples_of(training, d, masking), .notices = notices, .is_builtin = is_builtin};
  if (!evaluates(request.config) || d.held_out == 0) return parts;
  require(held_out.size() > d.sequence, "data", "the held-out part must hold a sequence: got ", held_out.size(),
          " tokens of ", training.size() + held_out.size(), ", sequence ", d.sequence,
          ", because the text is too short for data.held_out = ", d.held_out,
          "; add text, raise data.held_out, lower data.sequence, or set training.evaluate_batches = 0");
  parts.held_out = samples_of(held_out, d, masking);
  return parts;
}

}  // namespace

std::vector<data::StreamSource> sources_of(const DataConfig& d, const StreamKeys& keys) {
  const auto& [named, weights, bytes] = keys;
  require(weights.empty() || weights.size() == named.size(), "data", "weights must be one for each source: got ",
          weights.size(), " for ", named.size(), " of data.sources");
  if (named.empty()) return {data::StreamSource::open("path", d.path, 1)};
  require(d.path == "builtin", "data", "data.sources replaces data.path: got both, path = ", d.path, "; leave one out");
  std::vector<data::StreamSource> sources;
  for (size_t i = 0; i < named.size(); ++i) {
    const size_t equals = named[i].find('=');
    require(equals != std::string::npos && equals > 0, "data", "each source must be `name=path`: got ", named[i]);
    sources.push_back(data::StreamSource::open(named[i].substr(0, equals), named[i].substr(equals + 1),
                                               weights.empty() ? 1 : weights[i]));
  }
  return sources;
}

data::OnError on_error_of(const DataConfig& d) {
  return d.on_error == "skip" ? data::OnError::Skip : data::OnError::Refuse;
}

bool reads_records(const DataConfig& d) {
  return data::is_record_file(d.path) || (d.path != "builtin" && data::is_record_folder(d.path));
}

void check_stream_keys(const StreamKeys& keys) {
  refuse_unused_data_keys(keys, {{"weights", !keys.sources.empty(), "data.sources"}});
}

PlainText open_plain_text(const DataRequest& request) {
  const DataConfig& d = request.config.data;
  const std::string& builtin = request.builtin;
  std::error_code none;
  require(d.path != "builtin" || std::filesystem::exists(builtin, none), "data",
          "data.path = \"builtin\" needs the sources that this program was built from, but they are no longer at ",
          builtin, "; install the program again, or name a text file or a folder with --data.path=PATH");
  const bool is_archive = d.path == "builtin" && std::filesystem::is_regular_file(builtin, none);
  const auto corpus = is_archive ? data::Corpus::open_archive(builtin, *request.tokenizer)
                                 : data::Corpus::open(d.path == "builtin" ? builtin : d.path, *request.tokenizer,
                                                      {request.config.run.folder});
  auto [training, held_out] = corpus.split(d.held_out);
  PlainText text{std::move(training), std::move(held_out), {}, d.path == "builtin"};
  if (corpus.left_out() && d.path != "builtin") text.notices.push_back(*corpus.left_out());
  return text;
}

OpenedData open_tokens(const DataRequest& request, const StreamKeys& keys,
                       const std::optional<data::Masking>& masking) {
  const bool streams = !keys.sources.empty() || reads_records(request.config.data);
  check_unused_data_keys(request.config.data, {.records = streams});
  refuse_unused_data_keys(keys, {{"shuffle_bytes", streams, concat(kRecords, " or data.sources")}});
  return streams ? open_stream(request, keys, masking) : open_corpus(request, masking);
}

}  // namespace colossal::run

// The state that the routes of a server share: model, reader of requests, replicas, metrics and log.
//
//   serve::Service service(...);                               // the server answers 503 until open()
//   http::Server server(options, serve::routes(service));
//   service.open(model, replica);                              // the model is loaded
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "colossal/diffusion/draw_options.h"
#include "colossal/http/exchange.h"
#include "colossal/http/limits.h"
#include "colossal/http/server.h"
#include "colossal/infer/decoding/schema_cache.h"
#include "colossal/serve/metrics.h"
#include "colossal/serve/replica.h"
#include "colossal/serve/request_reader.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/tokenizer.h"

namespace colossal::serve {

/// A request in the log of a server, which has one line per request, without texts and keys.
struct RequestRecord {
  std::string id{};
  std::string route{};  ///< path of the route; "" = none was found
  int64_t key = 0;      ///< number of the key; 0 = none
  int status = 0;       ///< 0 = the client left before the answer
  int64_t prompt_tokens = 0, found_tokens = 0, answer_tokens = 0;
  std::optional<double> first_token_seconds{};  ///< none = no token
  double seconds = 0;
  std::string reason{};  ///< why the answer ended: "stop", "length", "left", ...; "" = "-"
};

/// Returns one line without a line break:
///
///   request 3f2a /v1/completions key 1 status 200: 12 prompt tokens (8 found), 40 answer tokens, first after 0.021 s,
///   0.310 s, stop
///
/// Characters of the id, the route and the reason that are not printable ASCII, and blanks, become `?`.
std::string log_line(const RequestRecord& record);

/// An adapter of the model, which requests choose by its name.
struct ServedAdapter {
  std::string name{};                         ///< infer::Request::adapter
  const text::ChatTemplate* chat_template{};  ///< nullptr = that of the model
};

/// The model of a server, as routes see it. It does not change.
struct ServedModel {
  std::string name{};                         ///< shown by /v1/models
  bool demands_name = false;                  ///< requests for another model get 404 (--name, or adapters)
  std::vector<ServedAdapter> adapters{};      ///< needs demands_name
  int64_t created = 0;                        ///< seconds since 1970
  const text::Tokenizer* tokenizer{};         ///< outlives the service; nullptr = the model draws pictures
  const text::ChatTemplate* chat_template{};  ///< nullptr = the model has none
  infer::SchemaCache* schemas{};  ///< compiles schemas before work is added; nullptr for a model that only embeds
  int64_t max_length = 0;         ///< maximum tokens of a sequence: positions and cache allow them
  int64_t even_length = 0;        ///< models::LongTexts::even_positions
  bool continues = false;         ///< the model continues text: completions and chats
  /// Checks the texts of an embedding (infer::Embedder::check) and returns; throws colossal::Error. Empty = the model
  /// or its layout has no embeddings; `no_embeddings` says why.
  std::function<void(const std::vector<int64_t>&)> check_embedding{};
  std::string no_embeddings{};
  std::string embedding_prompt{};  ///< text before each text to embed, not before token ids; "" = none
  /// Checks what a request wants drawn (diffusion::Drawer::check) and returns; throws colossal::Error. Empty = the
  /// model draws no pictures
  std::function<void(const diffusion::DrawOptions&, const diffusion::GivenFiles&)> check_drawing{};
  bool draws_classes = false;  ///< the prompt of a picture names a class

  bool draws() const { return check_drawing != nullptr; }
  /// Returns the names that requests may have as `model`, that of the model itself first; empty = every name.
  std::vector<std::string> accepted_names() const;
  /// Returns the adapter that a request with this `model` chooses; nullptr = the model itself.
  const ServedAdapter* adapter_of(const std::string& requested) const;
  /// Returns the template of chats with this `model`; nullptr = there is none.
  const text::ChatTemplate* template_of(const std::string& requested) const;
};

struct ServiceOptions {
  RequestDefaults defaults{};
  http::ServerLimits limits{};
  bool has_keys = false;     ///< the server demands keys: prefixes are shared under the same key only
  bool only_embeds = false;  ///< the model that will be loaded only embeds: GET / has no chat page
  bool draws = false;        ///< the model that will be loaded draws pictures: GET / has no chat page
  int64_t max_embedding_tokens = int64_t{16} << 20;    ///< tokens of all unfinished embeddings: 128 MiB of ids
  std::function<void(const std::string& line)> log{};  ///< called with each line of the log, from any thread
};

/// Thread safety: any thread may call the members.
class Service {
 public:
  explicit Service(ServiceOptions options);
  ~Service();

  /// The model is loaded. `replica` outlives the server that calls the routes. Called once.
  void open(ServedModel model, Replica& replica);
  bool is_open() const { return is_open_; }
  /// The server drains: /health answers 503. Called together with http::Server::drain().
  void drain() { is_draining_ = true; }
  bool is_draining() const { return is_draining_; }
  /// Returns true if GET / is the chat page. Also before open().
  bool has_chat_page() const { return is_open_ ? model_.continues : !options_.only_embeds && !options_.draws; }
  /// Returns true if the model draws pictures. Also before open().
  bool draws() const { return is_open_ ? model_.draws() : options_.draws; }

  // After open():
  const ServedModel& model() const { return model_; }
  const RequestReader& reader() const { return *reader_; }
  Replica& replica() const { return *replica_; }

  const ServiceOptions& options() const { return options_; }
  Metrics& metrics() { return metrics_; }

  /// Returns infer::Request::cache_key of a request: the number of the client's key, or "" without keys.
  std::string cache_key_of(const http::Request& request) const;

  /// Returns the error of a request whose `choices` pieces of work do not fit the queue (Replica::add()).
  http::RequestError queue_is_full(int64_t choices) const;

  /// Returns the place of an embedding of that many tokens, for as long as it is unfinished: embeddings take turns, so
  /// those that have begun need memory, too. Errors: http::RequestError 429, if max_waiting embeddings have a place, or
  /// if they have more than ServiceOptions::max_embedding_tokens with this one. One alone always gets a place.
  std::shared_ptr<const void> take_embedding_place(int64_t tokens);

  /// Begins the record of a request that runs the model. Call it before the answer begins.
  void begin_record(const http::Request& request, const http::Exchange& exchange);
  /// Changes the record of a request, which the log shows at its end. Does nothing without begin_record() or
  /// after the request's end.
  void note(uint64_t number, const std::function<void(RequestRecord&)>& change);
  /// Writes the line of a request, unless its route is kHealthPath, and counts it. ServerOptions::on_end calls it.
  void log_end(const http::RequestEnd& end);

 private:
  ServiceOptions options_;
  ServedModel model_;
  std::unique_ptr<RequestReader> reader_;
  Replica* replica_ = nullptr;
  Metrics metrics_;
  std::atomic<bool> is_open_{false}, is_draining_{false};
  std::mutex mutex_;                               // guards the members below
  std::map<uint64_t, RequestRecord> records_;      // records of running requests, by Request::number
  int64_t embeddings_ = 0, embedding_tokens_ = 0;  // unfinished ones
};

}  // namespace colossal::serve

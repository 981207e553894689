#include "colossal/serve/service.h"

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/number.h"
#include "colossal/serve/routes.h"

namespace colossal::serve {
namespace {

std::string plain(std::string text) {
  for (char& c : text)
    if (c <= ' ' || c > '~') c = '?';
  return text.empty() ? "-" : text;
}

ReaderOptions reader_options(const ServiceOptions& options, const ServedModel& model) {
  ReaderOptions reader{.defaults = options.defaults,
                       .vocabulary = model.tokenizer ? model.tokenizer->vocabulary_size() : 0};
  reader.limits.depth = static_cast<int>(options.limits.max_depth);
  reader.limits.max_n = options.limits.max_n;
  reader.names = model.accepted_names();
  return reader;
}

}  // namespace

std::string log_line(const RequestRecord& record) {
  const std::string first =
      record.first_token_seconds ? "first after " + fixed_text(*record.first_token_seconds, 3) + " s" : "no first";
  return concat("request ", plain(record.id), " ", plain(record.route), " key ",
                record.key > 0 ? std::to_string(record.key) : "-", " status ", record.status, ": ",
                record.prompt_tokens, " prompt tokens (", record.found_tokens, " found), ", record.answer_tokens,
                " answer tokens, ", first, ", ", fixed_text(record.seconds, 3), " s, ", plain(record.reason));
}

std::vector<std::string> ServedModel::accepted_names() const {
  if (!demands_name) return {};
  std::vector<std::string> names{name};
  for (const ServedAdapter& adapter : adapters) names.push_back(adapter.name);
  return names;
}

const ServedAdapter* ServedModel::adapter_of(const std::string& requested) const {
  const auto found = std::find_if(adapters.begin(), adapters.end(),
                                  [&](const ServedAdapter& adapter) { return adapter.name == requested; });
  return found == adapters.end() ? nullptr : &*found;
}

const text::ChatTemplate* ServedModel::template_of(const std::string& requested) const {
  const ServedAdapter* const adapter = adapter_of(requested);
  return adapter && adapter->chat_template ? adapter->chat_template : chat_template;
}

Service::Service(ServiceOptions options) : options_(std::move(options)) {}
Service::~Service() = default;

void Service::open(ServedModel model, Replica& replica) {
  require(!is_open_, "serve", "a service is opened once: got a second model, ", model.name);
  require(model.adapters.empty() || model.demands_name, "serve",
          "requests must name the model or an adapter if there are adapters: got demands_name = false");
  model_ = std::move(model);
  reader_ = std::make_unique<RequestReader>(reader_options(options_, model_));
  replica_ = &replica;
  is_open_ = true;
}

std::string Service::cache_key_of(const http::Request& request) const {
  return options_.has_keys ? std::to_string(request.key) : "";
}

http::RequestError Service::queue_is_full(int64_t choices) const {
  return {429, concat("the queue is full: ", options_.limits.max_waiting,
                      " requests may wait (--max-waiting), each prompt and choice counted, and this one adds ", choices,
                      "; try again later")};
}

std::shared_ptr<const void> Service::take_embedding_place(int64_t tokens) {
  const int64_t max_tokens = options_.max_embedding_tokens;
  {
    const std::scoped_lock lock(mutex_);
    if (embeddings_ >= options_.limits.max_waiting) throw queue_is_full(1);
    if (embeddings_ > 0 && embedding_tokens_ + tokens > max_tokens)
      throw http::RequestError(429, concat("the queue is full: embeddings may have ", max_tokens,
                                           " tokens together, the unfinished ones have ", embedding_tokens_,
                                           ", and this one adds ", tokens, "; try again later"));
    ++embeddings_, embedding_tokens_ += tokens;
  }
  return std::shared_ptr<Service>(this, [tokens](Service* service) {
    const std::scoped_lock lock(service->mutex_);
    --service->embeddings_, service->embedding_tokens_ -= tokens;
  });
}

void Service::begin_record(const http::Request& request, const http::Exchange& exchange) {
  const std::scoped_lock lock(mutex_);
  records_.try_emplace(request.number);
  // If the client has left, log_end() may have been called already, and nothing else would remove the record. If the
  // client leaves from now on, log_end() waits for the lock and removes it.
  if (exchange.is_gone()) records_.erase(request.number);
}

void Service::note(uint64_t number, const std::function<void(RequestRecord&)>& change) {
  const std::scoped_lock lock(mutex_);
  const auto found = records_.find(number);
  if (found != records_.end()) change(found->second);
}

void Service::log_end(const http::RequestEnd& end) {
  RequestRecord record;
  bool ran_model = false;
  {
    const std::scoped_lock lock(mutex_);
    const auto node = records_.extract(end.number);
    ran_model = !node.empty();
    if (ran_model) record = node.mapped();
  }
  record.id = end.id, record.route = end.route, record.key = end.key;
  record.status = end.status, record.seconds = end.seconds;
  if (record.reason.empty() && !end.is_complete) record.reason = "left";
  metrics_.count_request(end.route.empty() ? "-" : end.route, end.status);
  if (ran_model && end.status == 200) metrics_.request_seconds.observe(end.seconds);
  if (options_.log && end.route != kHealthPath) options_.log(log_line(record));
}

}  // namespace colossal::serve

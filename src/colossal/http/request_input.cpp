#include "colossal/http/request_input.h"  // brings <utility>, which Boost 1.74 needs before its own headers

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <string>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::http {
namespace beast = boost::beast;
using ErrorCode = boost::system::error_code;

/// Builds a Request from the bytes of a connection.
class RequestInput::Parser final : public beast::http::basic_parser<true> {
 public:
  explicit Parser(const ServerLimits& limits) : max_header_(limits.max_header), max_body_(limits.max_body) {
    header_limit(static_cast<uint32_t>(limits.max_header));  // limits one read; count() adds up all reads
    body_limit(UINT64_MAX);  // the connection checks; Boost 1.74 takes boost::none for 0
    eager(false);            // stops after the headers
  }
  Request request;
  std::string target;
  bool is_http_1_0 = false;

 private:
  void on_request_impl(beast::http::verb, beast::string_view method, beast::string_view url, int version,
                       ErrorCode& error) override {
    request.method = std::string(method);
    target = std::string(url);
    is_http_1_0 = version == 10;
    count(method.size() + url.size(), error);
  }
  void count(size_t bytes, ErrorCode& error) {
    if ((header_bytes_ += bytes) > static_cast<size_t>(max_header_)) error = beast::http::error::header_limit;
  }
  void on_response_impl(int, beast::string_view, int, ErrorCode&) override {}
  void on_field_impl(beast::http::field, beast::string_view name, beast::string_view value, ErrorCode& error) override {
    count(name.size() + value.size() + 4, error);                                       // ": " and the line's end
    if (!is_header_done()) request.headers.add(std::string(name), std::string(value));  // not the trailers
  }
  void on_header_impl(ErrorCode&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, ErrorCode&) override {}
  size_t on_body_impl(beast::string_view bytes, ErrorCode& error) override {
    std::string& body = request.body;
    const size_t size = body.size() + bytes.size(), limit = static_cast<size_t>(max_body_);
    if (size > limit) {
      error = beast::http::error::body_limit;
      return 0;
    }
    if (size > body.capacity()) body.reserve(std::min(limit, std::max(size, body.capacity() + body.capacity() / 2)));
    body.append(bytes.data(), bytes.size());
    return bytes.size();
  }
  void on_chunk_header_impl(uint64_t size, beast::string_view ext, ErrorCode& error) override {
    count(ext.size(), error);
    if (size > static_cast<uint64_t>(max_body_) - request.body.size()) error = beast::http::error::body_limit;
  }
  size_t on_chunk_body_impl(uint64_t, beast::string_view bytes, ErrorCode& error) override {
    return on_body_impl(bytes, error);
  }
  void on_finish_impl(ErrorCode&) override {}
  const int64_t max_header_, max_body_;
  size_t header_bytes_ = 0;  // request line, fields, trailers and extensions of chunks
};

struct RequestInput::State {
  explicit State(const ServerLimits& limits_) : limits(limits_) {}

  const ServerLimits& limits;
  beast::flat_buffer buffer;  // bytes that are not parsed yet
  std::unique_ptr<Parser> parser;
};

RequestInput::RequestInput(const ServerLimits& limits) : state_(std::make_unique<State>(limits)) {}
RequestInput::~RequestInput() = default;

void RequestInput::add(std::string_view bytes) {
  beast::flat_buffer& buffer = state_->buffer;
  buffer.commit(boost::asio::buffer_copy(buffer.prepare(bytes.size()), boost::asio::buffer(bytes)));
}

size_t RequestInput::held() const { return state_->buffer.size(); }
void RequestInput::drop_held() { state_->buffer.consume(held()); }

bool RequestInput::begin() {
  beast::flat_buffer& buffer = state_->buffer;
  const auto* bytes = static_cast<const char*>(buffer.data().data());
  size_t breaks = 0;  // clients of old send a line break after a body
  while (breaks < buffer.size() && (bytes[breaks] == '\r' || bytes[breaks] == '\n')) ++breaks;
  buffer.consume(breaks);
  if (buffer.size() == 0) {
    buffer.shrink_to_fit();
    return false;
  }
  state_->parser = std::make_unique<Parser>(state_->limits);
  return true;
}

namespace {

/// Returns true if a line of the headers begins with white space (RFC 9112, section 5.2). The parser of Boost would
/// join it with the line before, which other programs on the way may read as two headers.
bool has_fold(std::string_view headers) {
  return headers.find("\r\n ") != headers.npos || headers.find("\r\n\t") != headers.npos;
}

}  // namespace

std::optional<ErrorAnswer> RequestInput::parse() {
  beast::flat_buffer& buffer = state_->buffer;
  Parser& parser = *state_->parser;
  const ServerLimits& limits = state_->limits;
  while (buffer.size() > 0 && !parser.is_done()) {
    ErrorCode error;
    const bool had_header = parser.is_header_done();
    const size_t used = parser.put(buffer.data(), error);
    const bool is_folded =
        !had_header && has_fold({static_cast<const char*>(buffer.data().data()), std::min(used, buffer.size())});
    buffer.consume(used);
    if (is_folded)
      return ErrorAnswer{.message = "a header must be on one line: got one that continues on the next line"};
    // The rest of the buffer is the beginning of a chunk's line or of the trailers.
    const bool is_long = had_header && buffer.size() > static_cast<size_t>(limits.max_header);
    if (error == beast::http::error::need_more && !is_long) return {};
    if (is_long || error == beast::http::error::header_limit)
      return ErrorAnswer{.status = 431,
                         .message = concat("the headers must have at most ", limits.max_header, " bytes")};
    if (error == beast::http::error::body_limit)
      return ErrorAnswer{.status = 413, .message = concat("the body must have at most ", limits.max_body, " bytes")};
    if (error) return ErrorAnswer{.message = concat("the request must be HTTP/1.1 or HTTP/1.0: ", error.message())};
    if (!had_header && parser.is_header_done()) return {};
  }
  return {};
}

std::optional<ErrorAnswer> RequestInput::check_header() const {
  const Request& request = state_->parser->request;
  if (!request.path.starts_with('/'))
    return ErrorAnswer{.message = "the target of a request must be a path that begins with /"};
  // With another one the end of the body is unknown, or the body is compressed.
  if (const std::string* encoding = request.headers.find("Transfer-Encoding");
      encoding && (!same_name(*encoding, "chunked") || is_http_1_0()))
    return ErrorAnswer{.message = "the Transfer-Encoding of a request must be chunked, in HTTP/1.1"};
  return {};
}

std::optional<ErrorAnswer> RequestInput::check_length() const {
  const auto length = content_length();
  const int64_t limit = state_->limits.max_body;
  if (!length || *length <= static_cast<uint64_t>(limit)) return {};
  return ErrorAnswer{.status = 413, .message = concat("the body must have at most ", limit, " bytes: got ", *length)};
}

bool RequestInput::expects_continue() const {
  const std::string* expects = state_->parser->request.headers.find("Expect");
  return expects && same_name(*expects, "100-continue") && held() == 0 && !is_http_1_0();
}

void RequestInput::begin_body() { state_->parser->eager(true); }

bool RequestInput::skip_body() {
  if (is_complete()) return true;
  const auto length = state_->parser->content_length_remaining();
  if (!length || *length > held()) return false;
  state_->buffer.consume(static_cast<size_t>(*length));
  return true;
}

void RequestInput::drop_body() { state_->parser->request.body = {}; }

Request RequestInput::take() { return std::move(state_->parser->request); }

void RequestInput::end() { state_->parser.reset(); }

bool RequestInput::has_header() const { return state_->parser && state_->parser->is_header_done(); }
bool RequestInput::is_complete() const { return state_->parser && state_->parser->is_done(); }
bool RequestInput::is_http_1_0() const { return state_->parser && state_->parser->is_http_1_0; }
bool RequestInput::keeps_alive() const { return state_->parser && state_->parser->keep_alive(); }
bool RequestInput::is_head() const { return state_->parser && state_->parser->request.method == "HEAD"; }
Request& RequestInput::request() { return state_->parser->request; }
std::string_view RequestInput::target() const { return state_->parser->target; }

std::optional<uint64_t> RequestInput::content_length() const {
  const auto length = state_->parser->content_length();
  return length ? std::optional<uint64_t>(*length) : std::nullopt;
}

}  // namespace colossal::http

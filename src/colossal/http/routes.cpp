#include "colossal/http/routes.h"

#include <arpa/inet.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/join.h"

namespace colossal::http {
namespace {

bool is_wildcard(const Route& route) { return route.path.ends_with('*'); }

bool has_path(const Route& route, std::string_view path) {
  if (!is_wildcard(route)) return route.path == path;
  const std::string_view prefix = std::string_view(route.path).substr(0, route.path.size() - 1);
  return path.size() > prefix.size() && path.starts_with(prefix);
}

/// Returns the routes of a path: those with the exact path, else those with the longest wildcard's prefix.
std::vector<const Route*> routes_of(const std::vector<Route>& routes, std::string_view path) {
  std::vector<const Route*> found;
  for (const Route& route : routes) {
    if (!has_path(route, path)) continue;
    const auto rank = [](const Route& r) { return is_wildcard(r) ? r.path.size() : std::string::npos; };
    if (!found.empty() && rank(route) > rank(*found[0])) found.clear();
    if (found.empty() || rank(route) == rank(*found[0])) found.push_back(&route);
  }
  return found;
}

/// Returns the host of a Host header, without port and without the brackets of IPv6; "" for a header of another form.
std::string_view host_name(std::string_view host) {
  const bool is_v6 = host.starts_with('[');
  const size_t end = is_v6 ? host.find(']') : std::min(host.find(':'), host.size());
  if (end == std::string_view::npos) return "";
  const std::string_view port = host.substr(end + is_v6);
  if (!port.empty() && (port[0] != ':' || port.find_first_not_of("0123456789", 1) != std::string_view::npos)) return "";
  std::string_view name = host.substr(is_v6, end - is_v6);
  if (name.ends_with('.')) name.remove_suffix(1);
  return name;
}

bool accepts_host(const Admission& admission, std::string_view host) {
  const std::string_view name = host_name(host);
  return is_loopback(name) || std::any_of(admission.hosts.begin(), admission.hosts.end(),
                                          [&](const std::string& other) { return same_name(name, other); });
}

int64_t key_of(const Request& request, const Keys& keys) {
  constexpr std::string_view kScheme = "Bearer ";
  const std::string* sent = request.headers.find("Authorization");
  if (!sent || !same_name(std::string_view(*sent).substr(0, kScheme.size()), kScheme)) return 0;
  return keys.number_of(std::string_view(*sent).substr(kScheme.size()));
}

bool is_json_type(const std::string* type) {
  if (!type) return false;
  std::string_view name = std::string_view(*type).substr(0, type->find(';'));
  while (name.ends_with(' ')) name.remove_suffix(1);
  return same_name(name, "application/json");
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kLongest = 200;
  return concat('"', text.substr(0, kLongest), text.size() > kLongest ? "...\"" : "\"");
}

ErrorAnswer wrong_method(const Request& request, const std::vector<const Route*>& found, std::string& allowed) {
  allowed = join(found, ", ", &Route::method);
  return {.status = 405,
          .message = concat("the method of ", request.path, " must be ", allowed, ": got ", in_quotes(request.method))};
}

}  // namespace

bool is_loopback(std::string_view host) {
  if (same_name(host, "localhost")) return true;
  const std::string text(host);
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

Admitted admit(const Request& request, bool is_http_1_0, bool is_draining, const std::vector<Route>& routes,
               const Admission& admission) {
  Admitted result;
  const auto refuse = [&](int status, const std::string& message, const std::string& code = "") {
    result.refusal = error_response({.status = status, .message = message, .code = code});
    return result;
  };
  const int64_t hosts = request.headers.count("Host");
  if (hosts > 1 || (hosts == 0 && !is_http_1_0))
    return refuse(400, concat("a request must have one Host header: got ", hosts));
  if (const std::string* host = request.headers.find("Host");
      admission.checks_host && host && !accepts_host(admission, *host))
    return refuse(403, concat("the Host header must be localhost, a loopback address or a name of --allow-host: got ",
                              in_quotes(*host)));
  const std::vector<const Route*> found = routes_of(routes, request.path);
  const bool is_open = !found.empty() && !found[0]->needs_key;
  if (!admission.keys.is_empty() && !is_open) {
    result.key = key_of(request, admission.keys);
    if (result.key == 0)
      return refuse(401,
                    request.headers.find("Authorization")
                        ? "the header `Authorization: Bearer KEY` must have a key of this server: got another value"
                        : "a key is needed: send the header `Authorization: Bearer KEY`",
                    "invalid_api_key");
  }
  if (found.empty()) return refuse(404, concat("there is no route ", in_quotes(request.path)));
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  const auto route = std::find_if(found.begin(), found.end(), [&](const Route* r) { return r->method == method; });
  if (route == found.end()) {
    std::string allowed;
    result.refusal = error_response(wrong_method(request, found, allowed));
    result.refusal->headers.add("Allow", allowed);
    return result;
  }
  if (is_draining && !(*route)->while_draining) return refuse(503, "the server is stopping");
  if (const std::string* type = request.headers.find("Content-Type"); method == "POST" && !is_json_type(type))
    return refuse(415, concat("the content type must be application/json: got ", type ? in_quotes(*type) : "none",
                              "; with curl add -H 'Content-Type: application/json'"));
  if (const std::string* encoding = request.headers.find("Content-Encoding");
      method == "POST" && encoding && !same_name(*encoding, "identity"))
    return refuse(415, concat("the body must not be compressed: got Content-Encoding ", in_quotes(*encoding)));
  result.route = *route;
  if (is_wildcard(**route))
    result.rest = percent_decoded(std::string_view(request.path).substr((*route)->path.size() - 1));
  return result;
}

}  // namespace colossal::http

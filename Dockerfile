# docker build -t ojs-throttle .
# docker run --rm --stop-timeout 30 -p 8080:8080 -v "$PWD/conf:/etc/ojs-throttle:ro" ojs-throttle
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN .ci/release

# glibc, roots for TLS, no shell.
FROM gcr.io/distroless/cc-debian12
COPY --from=build /src/target/shipped/dist/ojs-throttle /usr/local/bin/ojs-throttle
COPY LICENSE /usr/share/doc/ojs-throttle/LICENSE
USER 65532:65532
# 8080: SDKs. 9091: metrics and health.
EXPOSE 8080 9091
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/ojs-throttle"]
# The folder is what to mount: a file that is mounted by itself does not follow its changes.
CMD ["run", "--config", "/etc/ojs-throttle/throttle.toml"]
